#include "model/train/session/straggler.h"

#include <catch2/catch.hpp>

#include <vector>

#include "runtime/base/random.h"

namespace straggler_test {

using namespace zs;

namespace {

/// The steps after which a line came, of steps in which rank `slowest(step)` kept others waiting for `lost` of the
/// time.
template <class Slowest>
std::vector<int> told(int steps, const Slowest& slowest, double lost, std::string* line = nullptr, double step_s = 0.2,
                      bool says_once = false) {
  StragglerWatch watch(says_once);
  std::vector<int> at;
  for (int step = 1; step <= steps; ++step) {
    const std::string text = watch.after_step({slowest(step), 0.01, 0.01 + step_s * lost}, step_s);
    if (text.empty()) continue;
    at.push_back(step);
    if (line != nullptr) *line = text;
  }
  return at;
}

}  // namespace

TEST_CASE(
    "a rank that is always the slowest is named within 20 steps, with its share of the time, and then now and then") {
  std::string line;
  CHECK(told(
            240, [](int) { return 2; }, 0.3, &line) == std::vector<int>{16, 116, 216});
  CHECK(line == "rank 2 is slow: in the last 16 steps others waited for it 30 % of the time");
}

TEST_CASE("where ranks share their CPUs one line says that one is slow, whichever it is later") {
  CHECK(told(
            240, [](int step) { return step < 120 ? 2 : 1; }, 0.3, nullptr, 0.2, true) == std::vector<int>{16});
}

TEST_CASE("one step in which another is slower does not hide it") {
  CHECK(told(
            20, [](int step) { return step == 7 ? 0 : 2; }, 0.3) == std::vector<int>{16});
}

TEST_CASE("nobody is named where turns are taken, or little is lost") {
  const CounterRng rng(1, 2);
  for (const std::uint64_t ranks : {2, 4, 8}) {
    CHECK(told(
              1000, [&](int step) { return static_cast<int>(rng.bits(static_cast<std::uint64_t>(step)) % ranks); }, 0.5)
              .empty());
  }
  CHECK(told(
            1000, [](int) { return 1; }, 0.1)
            .empty());
  CHECK(told(
            1000, [](int) { return 1; }, 0.5, nullptr, 0.019)  // the system's turns
            .empty());
}

}  // namespace straggler_test
