#include "model/data/read_ahead.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <stdexcept>

#include "runtime/base/check.h"

namespace zs::test::read_ahead_test {
namespace {

SampleBatch batch_of(std::int64_t first) { return {{static_cast<std::int32_t>(first)}, {}, {first}}; }

}  // namespace

TEST_CASE("micro-batches are read in order before they are asked for, as many ahead as told and none beyond the end") {
  std::atomic<std::int64_t> reads = 0;
  std::promise<void> second, fourth;
  ReadAhead ahead(
      [&](std::int64_t first) {
        if (++reads == 2) second.set_value();
        if (reads == 4) fourth.set_value();
        return batch_of(first);
      },
      {.first = 3, .next = [](std::int64_t first) { return first + 4; }, .end = 18}, 2);
  second.get_future().wait();  // without being asked
  CHECK(ahead.take(3).lengths == std::vector<std::int64_t>{3});
  CHECK(ahead.waited_ns() == 0);
  CHECK(ahead.take(7).inputs == std::vector<std::int32_t>{7});
  fourth.get_future().wait();
  CHECK(ahead.take(11).lengths.front() == 11);
  CHECK(ahead.take(15).lengths.front() == 15);
  CHECK(reads == 4);
  CHECK_THROWS_AS(ahead.take(19), Error);
}

TEST_CASE("reading begins anew with what is asked for out of turn") {
  ReadAhead ahead(batch_of, {.first = 0, .next = [](std::int64_t first) { return first + 1; }, .end = 1000}, 3);
  for (const std::int64_t first : {0, 1, 500, 501, 2, 3, 3, 4, 999, 0})
    CHECK(ahead.take(first).lengths == std::vector<std::int64_t>{first});
}

TEST_CASE("who takes waits for what is not read yet, and the wait is counted") {
  std::promise<void> asked;
  std::shared_future<void> go = asked.get_future().share();
  ReadAhead ahead(
      [go](std::int64_t first) {
        go.wait();
        return batch_of(first);
      },
      {.first = 0, .next = [](std::int64_t first) { return first + 1; }, .end = 2}, 1);
  auto taken = std::async(std::launch::async, [&] { return ahead.take(0); });
  CHECK(taken.wait_for(std::chrono::milliseconds(20)) == std::future_status::timeout);
  asked.set_value();
  CHECK(taken.get().lengths.front() == 0);
  CHECK(ahead.waited_ns() > 0);
}

TEST_CASE("what reading threw is thrown where that is asked for, and not before") {
  ReadAhead ahead(
      [](std::int64_t first) {
        if (first == 1) throw Error(ExitCode::dataset, "broken", "here", "mend it");
        return batch_of(first);
      },
      {.first = 0, .next = [](std::int64_t first) { return first + 1; }, .end = 10}, 4);
  CHECK(ahead.take(0).lengths.front() == 0);
  CHECK_THROWS_WITH(ahead.take(1), Catch::Contains("broken"));
  CHECK(ahead.take(2).lengths.front() == 2);
}

}  // namespace zs::test::read_ahead_test
