#pragma once

namespace zs::test {

/// Cases that ran to their end, and cases that skipped; tests/skip.cpp counts them.
int passed_cases();
int skipped_cases();
/// Marks the running case as skipped and says why. The case must return right after.
void skip(const char* reason);

}  // namespace zs::test
