#include "comm/wait.h"

#include <catch2/catch.hpp>

using namespace zs;
using namespace std::chrono_literals;

TEST_CASE("a deadline passes after its time, for who looks") {
  const auto start = Deadline::Clock::now();
  Deadline deadline(5, start);
  for (const auto after : {0s, 1s, 2s, 3s, 4s}) CHECK(!deadline.has_passed(start + after));
  CHECK(deadline.has_passed(start + 5s));
}

TEST_CASE("time in which nobody could look does not count against a deadline") {
  const auto start = Deadline::Clock::now();
  Deadline deadline(5, start);
  CHECK(!deadline.has_passed(start + 1s));
  CHECK(!deadline.has_passed(start + 1h));  // stopped for that long
  CHECK(!deadline.has_passed(start + 1h + 1s));
  CHECK(!deadline.has_passed(start + 1h + 2s + 900ms));
  CHECK(!deadline.has_passed(start + 1h + 3s + 900ms));
  CHECK(deadline.has_passed(start + 1h + 4s));
}

TEST_CASE("a deadline of longer than a clock can say never passes") { CHECK(!Deadline(1e300).has_passed()); }

TEST_CASE("patience ends with its time, and begins again when something moves") {
  const auto ends = [](Patience& patience) {
    while (patience.pause()) {
    }
    return std::chrono::steady_clock::now();
  };
  auto begin = std::chrono::steady_clock::now();  // before it does
  Patience patience(0.1);
  CHECK(ends(patience) - begin >= 100ms);
  CHECK(!patience.pause());
  begin = std::chrono::steady_clock::now();
  patience.restart();
  CHECK(ends(patience) - begin >= 100ms);
}
