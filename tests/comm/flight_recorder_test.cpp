#include "comm/health/flight_recorder.h"

#include <catch2/catch.hpp>

#include <chrono>
#include <sstream>
#include <thread>

#include "comm/health/diagnosis.h"
#include "comm/health/fault_injector.h"
#include "comm/health/status_scope.h"
#include "comm/health/watchdog.h"
#include "comm/world.h"
#include "runtime/device/device.h"

namespace flight_recorder_test {

using namespace zs;

namespace {

std::vector<std::string> lines_of(const StatusPage& page) {
  std::istringstream text(flight_text(page, "host", "a test"));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

FlightRecorder::Operation operation(std::uint64_t sequence) {
  return {.group = 5,
          .sequence = sequence,
          .enqueued_ns = monotonic_ns(),
          .elems = 12,
          .rank = 1,
          .size = 4,
          .text = "barrier(unit)"};
}

}  // namespace

TEST_CASE("the record keeps the last operations, in the order of their starts, and shows which are not done") {
  const auto page = std::make_unique<StatusPage>();
  FlightRecorder recorder(*page);
  const std::uint64_t count = StatusPage::kEntries + 10;
  for (std::uint64_t i = 1; i < count; ++i) recorder.done(recorder.start(operation(i)));
  recorder.start(operation(count));
  const auto lines = lines_of(*page);
  CHECK(lines[0] == "zshard flight record 1");
  CHECK(lines[1] == "reason a test");
  const auto head =
      std::find_if(lines.begin(), lines.end(), [](const std::string& line) { return line.starts_with("number\t"); });
  REQUIRE(lines.end() - head == StatusPage::kEntries + 1);
  CHECK((head + 1)->starts_with("11\t00000005\t1\t4\t11\tbarrier(unit)\tf32\t12\t"));
  CHECK(lines.back().starts_with(std::to_string(count) + "\t"));
  CHECK(lines.back().ends_with("\t-"));
  CHECK_FALSE((lines.end() - 2)->ends_with("\t-"));
  const RankView view = view_of(*page, 'S');
  REQUIRE(view.unfinished.size() == 1);
  CHECK(view.unfinished[0].sequence == count);
  REQUIRE(view.last_started.size() == 1);
  CHECK(view.last_started[0].sequence == count);
}

TEST_CASE("an operation that was overwritten while it ran does not mark another one as done") {
  const auto page = std::make_unique<StatusPage>();
  FlightRecorder recorder(*page);
  const std::uint64_t slow = recorder.start(operation(1));
  for (std::uint64_t i = 2; i <= StatusPage::kEntries; ++i) recorder.done(recorder.start(operation(i)));
  recorder.start(operation(StatusPage::kEntries + 1));
  recorder.done(slow);
  CHECK(view_of(*page, 'S').unfinished.size() == 1);
}

TEST_CASE("the host's waits for ranks count as waiting, once beside operations, and its work does not") {
  const auto page = std::make_unique<StatusPage>();
  FlightRecorder recorder(*page);
  const auto pass = [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };
  const std::int64_t least_ns = 5'000'000;
  {
    const StatusScope scope(&recorder, "a checkpoint", StatusScope::Host::works);
    pass();
  }
  CHECK(recorder.waited_ns() == 0);
  const std::int64_t begin = monotonic_ns();
  {
    const StatusScope scope(&recorder, "agreement of all ranks", StatusScope::Host::waits_for_ranks);
    const std::uint64_t number = recorder.start(operation(1));
    pass();
    recorder.done(number);
    CHECK(recorder.waited_ns() == 0);  // of both, when the last one ends
  }
  const std::int64_t waited = recorder.waited_ns();
  CHECK(waited >= least_ns);
  CHECK(waited <= monotonic_ns() - begin);
}

TEST_CASE("ranks record the same sequence in a group, and groups have names that only their members share") {
  std::vector<RankView> views(4);
  run_local_world(4, {.timeout_s = 60}, [&](World& world) {
    const auto device = Device::create(DeviceKind::cpu, {});
    Stream& stream = device->stream(StreamRole::compute);
    const auto all = world.communicator();
    const std::vector<int> pair = world.rank() < 2 ? std::vector{0, 1} : std::vector{2, 3};
    const auto half = world.group(pair);
    all->barrier(stream, "all");
    for (int i = 0; i < 2; ++i) half->barrier(stream, "half");
    device->synchronize();
    views[static_cast<std::size_t>(world.rank())] = view_of(world.watchdog()->page(), 'S');
    world.agree(0, "");
  });
  for (const RankView& view : views) {
    REQUIRE(view.last_started.size() == 2);
    CHECK(view.unfinished.empty());
  }
  const auto groups = [&](int rank) {
    const auto& ops = views[static_cast<std::size_t>(rank)].last_started;
    const bool is_ordered = ops[0].size == 4;
    return std::array{ops[is_ordered ? 0 : 1], ops[is_ordered ? 1 : 0]};
  };
  for (int rank = 1; rank < 4; ++rank) CHECK(groups(rank)[0].group == groups(0)[0].group);
  CHECK(groups(0)[1].group == groups(1)[1].group);
  CHECK(groups(2)[1].group == groups(3)[1].group);
  CHECK(groups(0)[1].group != groups(2)[1].group);
  CHECK(groups(0)[1].sequence == 2);
}

TEST_CASE("faults happen on their rank, at their hit, and bad ones are refused") {
  FaultInjector faults("a@rank=2,hit=3:throw;b:return;c@rank=1:throw", 2);
  CHECK_FALSE(faults.hit("a"));
  CHECK_FALSE(faults.hit("a"));
  CHECK_THROWS_AS(faults.hit("a"), std::runtime_error);
  CHECK_FALSE(faults.hit("a"));
  CHECK(faults.hit("b"));
  CHECK_FALSE(faults.hit("c"));
  CHECK_FALSE(faults.has("c"));
  CHECK_FALSE(FaultInjector("", 0).any());
  CHECK_THROWS_AS(FaultInjector("a:explode", 0), Error);
  CHECK_THROWS_AS(FaultInjector("a@rnak=2:stop", 0), Error);
  CHECK_THROWS_AS(FaultInjector("a@rank=two:stop", 0), Error);
}

}  // namespace flight_recorder_test
