#include "runtime/shard/schedule/exec_order.h"

#include <catch2/catch.hpp>

namespace zs::exec_order_test {
namespace {

using Phase = ExecOrder::Phase;
using Units = std::vector<int>;

/// An order that has recorded one micro-batch.
ExecOrder recorded(const Units& forward, const Units& backward = {}) {
  ExecOrder order;
  order.begin();
  for (const int unit : forward) order.advance(Phase::forward, unit);
  for (const int unit : backward) order.advance(Phase::backward, unit);
  order.end();
  return order;
}

}  // namespace

TEST_CASE("the first micro-batch is recorded, and expects nothing") {
  ExecOrder order;
  order.begin();
  CHECK_FALSE(order.is_recorded());
  for (const int unit : {0, 2, 1}) {
    CHECK(order.advance(Phase::forward, unit));
    CHECK(order.upcoming(Phase::forward, 3).empty());
  }
  CHECK(order.advance(Phase::backward, 2));
  order.end();
  CHECK(order.is_recorded());
  CHECK(order.units(Phase::forward) == Units{0, 2, 1});
  CHECK(order.units(Phase::backward) == Units{2});
}

TEST_CASE("a micro-batch in which nothing ran forward is not a recording") {
  ExecOrder order;
  order.begin();
  order.end();
  CHECK_FALSE(order.is_recorded());
}

TEST_CASE("a recording that did not end leaves nothing behind") {
  ExecOrder order;
  order.begin();
  order.advance(Phase::forward, 3);
  order.advance(Phase::backward, 3);
  order.begin();
  order.advance(Phase::forward, 1);
  order.end();
  CHECK(order.units(Phase::forward) == Units{1});
  CHECK(order.units(Phase::backward).empty());
}

TEST_CASE("a replay names the units to come, forward and backward apart") {
  ExecOrder order = recorded({0, 1, 2, 3}, {0, 3, 2, 1});
  order.begin();
  CHECK(order.upcoming(Phase::forward, 2) == Units{0, 1});
  CHECK(order.advance(Phase::forward, 0));
  CHECK(order.upcoming(Phase::forward, 0).empty());
  CHECK(order.upcoming(Phase::forward, 1) == Units{1});
  CHECK(order.upcoming(Phase::forward, 9) == Units{1, 2, 3});
  CHECK(order.upcoming(Phase::backward, 2) == Units{0, 3});
  CHECK(order.advance(Phase::backward, 0));
  CHECK(order.upcoming(Phase::backward, 2) == Units{3, 2});
  CHECK(order.upcoming(Phase::forward, 1) == Units{1});
}

TEST_CASE("every replay starts from the start") {
  ExecOrder order = recorded({0, 1, 2});
  for (int replay = 0; replay < 3; ++replay) {
    order.begin();
    CHECK(order.advance(Phase::forward, 0));
    CHECK(order.advance(Phase::forward, 1));
    CHECK(order.upcoming(Phase::forward, 5) == Units{2});
    order.end();
  }
  CHECK(order.units(Phase::forward) == Units{0, 1, 2});
}

TEST_CASE("a replay that skips units says so once and goes on behind them") {
  ExecOrder order = recorded({0, 1, 2, 3, 4});
  order.begin();
  CHECK(order.advance(Phase::forward, 0));
  CHECK_FALSE(order.advance(Phase::forward, 3));
  CHECK(order.upcoming(Phase::forward, 5) == Units{4});
  CHECK(order.advance(Phase::forward, 4));
}

TEST_CASE("a replay with a unit that is not due any more says so and keeps its place") {
  ExecOrder order = recorded({0, 1, 2});
  order.begin();
  CHECK(order.advance(Phase::forward, 0));
  CHECK_FALSE(order.advance(Phase::forward, 7));
  CHECK_FALSE(order.advance(Phase::forward, 0));
  CHECK(order.upcoming(Phase::forward, 5) == Units{1, 2});
  CHECK(order.advance(Phase::forward, 1));
}

TEST_CASE("a unit that runs twice is expected twice") {
  ExecOrder order = recorded({0, 1, 1, 2, 1});
  order.begin();
  for (const int unit : {0, 1, 1, 2, 1}) CHECK(order.advance(Phase::forward, unit));
  CHECK(order.upcoming(Phase::forward, 5).empty());
  CHECK_FALSE(order.advance(Phase::forward, 1));
}

TEST_CASE("a unit that runs several times in a row is to come once, and is next until it has") {
  ExecOrder order = recorded({0, 1, 1, 1, 2, 1});
  order.begin();
  CHECK(order.upcoming(Phase::forward, 3) == Units{0, 1, 2});
  CHECK(order.advance(Phase::forward, 0));
  CHECK(order.upcoming(Phase::forward, 9) == Units{1, 2, 1});
  std::vector<bool> is_next;
  for (int turn = 0; turn < 3; ++turn) {
    CHECK(order.advance(Phase::forward, 1));
    CHECK(order.upcoming(Phase::forward, 1) == Units{2});
    is_next.push_back(order.is_next(Phase::forward, 1));
  }
  CHECK(is_next == std::vector<bool>{true, true, false});
  CHECK(order.is_next(Phase::forward, 2));
  CHECK_FALSE(order.is_next(Phase::backward, 2));
}

TEST_CASE("nothing is next while the order is recorded") {
  ExecOrder order;
  order.begin();
  order.advance(Phase::forward, 1);
  CHECK_FALSE(order.is_next(Phase::forward, 1));
}

TEST_CASE("a replay does not change the order") {
  ExecOrder order = recorded({0, 1, 2}, {2, 1, 0});
  order.begin();
  CHECK_FALSE(order.advance(Phase::forward, 2));
  CHECK_FALSE(order.advance(Phase::backward, 1));
  order.end();
  CHECK(order.units(Phase::forward) == Units{0, 1, 2});
  CHECK(order.units(Phase::backward) == Units{2, 1, 0});
}

}  // namespace zs::exec_order_test
