#pragma once

namespace zs::test {

/// Cases that ran to their end, and cases that skipped; tests/skip.cpp counts them.
int passed_cases();
int skipped_cases();
/// Marks the running case as skipped and says why. The case must return right after.
void skip(const char* reason);

/// Whether this run of the running case is left out: ZSHARD_TEST_EVERY=n keeps the first of each n that ask, counted in
/// each case by itself. A case of minutes asks once in each of its runs, behind its GENERATEs (or in its loop), and
/// returns: tests/shard/meson.build says how many stay.
bool is_thinned_out();

}  // namespace zs::test
