// The main function of every Catch2 test program. Exit 0: passed; 77: everything skipped (see tests/skip.h); 1: failed.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include "tests/skip.h"

int main(int argc, char** argv) {
  Catch::Session session;
  if (const int rc = session.applyCommandLine(argc, argv); rc != 0) return rc;
  const int failed = session.run();
  if (failed != 0) return 1;
  return zs::test::skipped_cases() > 0 && zs::test::passed_cases() == 0 ? 77 : 0;
}
