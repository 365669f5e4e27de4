#include "tests/skip.h"

#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <catch2/catch.hpp>

#include <cstdio>

namespace zs::test {
namespace {

struct Counts {
  int passed = 0, skipped = 0;
  bool current_skipped = false;
};
Counts& counts() {
  static Counts counts;
  return counts;
}

struct Listener : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
  void testCaseStarting(const Catch::TestCaseInfo&) override { counts().current_skipped = false; }
  void testCaseEnded(const Catch::TestCaseStats&) override { ++(counts().current_skipped ? counts().skipped : counts().passed); }
};
CATCH_REGISTER_LISTENER(Listener)

}  // namespace

int passed_cases() { return counts().passed; }
int skipped_cases() { return counts().skipped; }

void skip(const char* reason) {
  counts().current_skipped = true;
  std::printf("skipped: %s\n", reason);
}

}  // namespace zs::test
