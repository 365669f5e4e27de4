#include "model/train/trainer/best_validation.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

namespace best_validation_test {

using namespace zs;

TEST_CASE("the best validation is the lowest, the first of equals, and counts those since that were no better") {
  BestValidation best;
  CHECK_FALSE(best.is_known());
  CHECK(best.note(2, 3.5f));
  CHECK_FALSE(best.note(4, 3.5f));
  CHECK_FALSE(best.note(6, 4.0f));
  CHECK(best == BestValidation{2, 3.5f, 2});
  CHECK(best.note(8, 3.0f));
  CHECK(best == BestValidation{8, 3.0f, 0});
}

TEST_CASE("a validation that is not finite is no best one") {
  BestValidation best;
  CHECK_FALSE(best.note(2, std::nanf("")));
  CHECK_FALSE(best.note(3, std::numeric_limits<float>::infinity()));
  CHECK_FALSE(best.is_known());
  CHECK(best.since == 2);
  CHECK(best.note(4, 1e30f));
  CHECK_FALSE(best.note(5, std::nanf("")));
  CHECK(best == BestValidation{4, 1e30f, 1});
}

TEST_CASE("the best validation reads back exactly") {
  for (const BestValidation& best : {BestValidation{}, BestValidation{7, 0.1f, 3}, BestValidation{0, -1e-40f, 0}})
    CHECK(BestValidation::parse(best.text()) == best);
}

}  // namespace best_validation_test
