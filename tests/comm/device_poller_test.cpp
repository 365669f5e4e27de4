#include <catch2/catch.hpp>
#include <latch>

#include "comm/health/watchdog.h"

namespace device_poller_test {

using namespace zs;

TEST_CASE("a device of which every stream waits, or is in an operation, only waits") {
  CHECK(waits_only(""));
  CHECK(waits_only("compute: waits for stream 'unshard'; unshard: all_gather:blocks.3"));
  CHECK(waits_only("reduce: reduce_scatter:root"));
  CHECK_FALSE(waits_only("compute: linear; unshard: all_gather:blocks.3"));
  CHECK_FALSE(waits_only("unshard: all_gather:blocks.3; finish: cast"));
}

TEST_CASE("a watchdog looks on while nobody answers what it asks") {
  Watchdog::Threads ranks(1);
  WatchOptions options;
  options.step_s = 1000;
  std::latch is_asked(1), may_answer(1);
  Watchdog watchdog(options, 0, ranks);
  const StatusScope probe(&watchdog, [&] {
    is_asked.count_down();
    may_answer.wait();
  });
  watchdog.enter(Phase::step, 1);
  is_asked.wait();
  const std::int64_t before = watchdog.page().heartbeat_ns;
  bool looks_on = false;
  for (int i = 0; i < 2000 && !looks_on; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    looks_on = watchdog.page().heartbeat_ns > before;
  }
  may_answer.count_down();
  CHECK(looks_on);
}

TEST_CASE("a watchdog calls for errands as long as they live") {
  Watchdog::Threads ranks(1);
  WatchOptions options;
  options.step_s = 1000;
  Watchdog watchdog(options, 0, ranks);
  std::atomic<int> calls{0};
  std::latch twice(2);
  {
    const StatusScope probe(&watchdog, [&] {
      if (++calls <= 2) twice.count_down();
    });
    watchdog.enter(Phase::step, 1);
    twice.wait();
  }
  const int after = calls;
  std::this_thread::sleep_for(3 * kPollEvery);
  CHECK(calls == after);
}

}  // namespace device_poller_test
