#include "comm/backoff.h"

#include <catch2/catch.hpp>

namespace backoff_test {

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

TEST_CASE("who waits for what is slow looks less often") {
  Backoff backoff(0.1, 1ms);
  int pauses = 0;
  while (backoff.pause()) ++pauses;
  CHECK(pauses <= 16 + 8 + 100);  // looks, sleeps that get longer, and those of 1 ms
}

TEST_CASE("a sleep lasts as long as 64 KiB take to move, within limits") {
  const std::int64_t mib = 1 << 20;
  CHECK(longest_sleep(mib, 8ms) == 500us);                     // about 1 Gbit/s
  CHECK(longest_sleep(64 * mib, 512ms) == 500us);              // the same
  CHECK(longest_sleep(mib, 40ms) == 1000us);                   // 200 Mbit/s
  CHECK(longest_sleep(mib, 800us) == Backoff::kLongestSleep);  // 10 Gbit/s
  CHECK(longest_sleep(mib, 0us) == Backoff::kLongestSleep);
  CHECK(longest_sleep(0, 10s) == 1000us);
}

TEST_CASE("backoff ends with its time, and begins again when something moves") {
  const auto ends = [](Backoff& backoff) {
    while (backoff.pause()) {
    }
    return std::chrono::steady_clock::now();
  };
  auto begin = std::chrono::steady_clock::now();  // before it does
  Backoff backoff(0.1);
  CHECK(ends(backoff) - begin >= 100ms);
  CHECK(!backoff.pause());
  begin = std::chrono::steady_clock::now();
  backoff.restart();
  CHECK(ends(backoff) - begin >= 100ms);
}

}  // namespace backoff_test
