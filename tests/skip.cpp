#include "tests/skip.h"

#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <catch2/catch.hpp>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

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
  void testCaseEnded(const Catch::TestCaseStats&) override {
    ++(counts().current_skipped ? counts().skipped : counts().passed);
  }
};
CATCH_REGISTER_LISTENER(Listener)

}  // namespace

int passed_cases() { return counts().passed; }
int skipped_cases() { return counts().skipped; }

void skip(const char* reason) {
  counts().current_skipped = true;
  std::printf("skipped: %s\n", reason);
}

bool is_thinned_out() {
  static const char* const text = std::getenv("ZSHARD_TEST_EVERY");
  static const int every = text == nullptr ? 1 : std::stoi(text);
  static std::map<std::string, int> asked;
  return asked[Catch::getResultCapture().getCurrentTestName()]++ % every != 0;
}

}  // namespace zs::test
