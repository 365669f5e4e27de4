#include "model/train/rank/time_limit.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>

namespace time_limit_test {

using namespace zs;
using namespace std::chrono_literals;

TEST_CASE("a run without a limit, in no job, has all the time there is") {
  const TimeLimit limit(0, TimeLimit::Clock::now(), std::nullopt);
  CHECK_FALSE(limit.is_set());
  CHECK_FALSE(limit.would_miss(1e12));
}

TEST_CASE("the limit counts from the start, and what would end after it misses it") {
  const auto start = TimeLimit::Clock::now();
  const TimeLimit limit(100, start, std::nullopt, start + 30s);
  CHECK(limit.is_set());
  CHECK(limit.name() == "train.time_limit (1:40)");
  CHECK(limit.seconds_left(start + 30s) == Approx(70));
  CHECK_FALSE(limit.would_miss(69, start + 30s));
  CHECK(limit.would_miss(71, start + 30s));
  CHECK(limit.would_miss(0, start + 101s));
}

TEST_CASE("of the limit and the job's end the earlier counts") {
  const auto start = TimeLimit::Clock::now(), now = start + 30s;
  CHECK(TimeLimit(100, start, 50.0, now).seconds_left(now) == Approx(50));
  CHECK(TimeLimit(100, start, 50.0, now).name() == "the Slurm job's end (SLURM_JOB_END_TIME)");
  CHECK(TimeLimit(100, start, 80.0, now).seconds_left(now) == Approx(70));
  CHECK(TimeLimit(0, start, 80.0, now).seconds_left(now) == Approx(80));
  CHECK(TimeLimit(1e8, start, 1e300, now).seconds_left(now) > 9e7);
}

TEST_CASE("Slurm's end is a Unix time; one that has passed, or is none, does not count") {
  const auto with = [](const std::string& text) {
    REQUIRE(setenv("SLURM_JOB_END_TIME", text.c_str(), 1) == 0);
    const auto left = slurm_seconds_left();
    REQUIRE(unsetenv("SLURM_JOB_END_TIME") == 0);
    return left;
  };
  const auto now =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  CHECK_FALSE(slurm_seconds_left());
  CHECK(*with(std::to_string(now + 1000)) == Approx(1000).margin(60));
  CHECK_FALSE(with(std::to_string(now - 10)));
  CHECK_FALSE(with("2026-01-01"));
}

TEST_CASE("the margin grows with what was measured, and is guessed from the sizes before") {
  StopMargin margin(1'000'000'000, 300'000'000);
  const double guessed = margin.seconds();
  CHECK(guessed > 13);
  margin.note_save(2);
  CHECK(margin.seconds() < guessed);
  const double measured = margin.seconds();
  margin.note_gap(10);
  CHECK(margin.seconds() >= measured + 10);
  margin.note_gap(1);  // the longest counts
  CHECK(margin.seconds() >= measured + 10);
}

}  // namespace time_limit_test
