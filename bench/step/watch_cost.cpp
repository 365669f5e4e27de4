#include "bench/step/watch_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <thread>

#include "bench/common/clock.h"
#include "bench/common/ranks.h"
#include "comm/health/watchdog.h"
#include "runtime/base/check.h"

namespace zs::bench {
namespace {

constexpr int kRecords = 200'000, kComparisons = 500;
constexpr double kPolls = 10;        // at least: short runs see none
constexpr std::int64_t kHashes = 2;  // as in runtime/shard/execute/order_check.cpp

double us_since(Clock::time_point start, int count) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / count;
}

double record_us() {
  const auto page = std::make_unique<StatusPage>();
  FlightRecorder recorder(*page);
  const auto start = Clock::now();
  for (int i = 0; i < kRecords; ++i) {
    recorder.done(recorder.start({.group = 1,
                                  .sequence = static_cast<std::uint64_t>(i),
                                  .enqueued_ns = monotonic_ns(),
                                  .elems = 1,
                                  .text = "reduce_scatter(blocks.3) accumulate f32"}));
  }
  return us_since(start, kRecords);
}

/// The ranks go through them together, one behind the other on their streams, as in a step.
double comparison_us(World& world, Device& device) {
  const auto comm = world.communicator();
  Stream& stream = device.stream(StreamRole::compute);
  std::array<std::int64_t, kHashes> hashes{};
  const Buffer buffer{hashes.data(), kHashes, DType::i64, DeviceKind::cpu};
  comm->barrier(stream, "bench");
  device.synchronize();
  const auto start = Clock::now();
  for (int i = 0; i < kComparisons; ++i) comm->all_reduce(stream, "order", buffer, ReduceOp::max);
  device.synchronize();
  return us_since(start, kComparisons);
}

std::string row(const char* name, const std::string& each, double step_us, double step_ms) {
  return fmt::format("{:<14}{:<36}{:>10.2f} us a step{:>10.3f} %\n", name, each, step_us, 0.1 * step_us / step_ms);
}

}  // namespace

std::string watch_cost(World& world, const StepOptions& options, const Config& config) {
  ZS_CHECK(world.watchdog() != nullptr, "--watch needs a world that is watched");
  Watchdog& watchdog = *world.watchdog();
  watchdog.enter(Phase::step);  // a rank alone is watched from the first phase with a limit
  const StepReport report = StepBench(world, options, config).run();
  const Watchdog::Cost so_far = watchdog.cost();
  std::this_thread::sleep_for(std::max(kPolls - so_far.polls, 0.0) *
                              std::chrono::duration<double, std::milli>(so_far.poll_every_ms));
  const Watchdog::Cost polls = watchdog.cost();
  const auto device = Device::create(DeviceKind::cpu, {});
  std::array<double, 3> costs{record_us(), world.size() > 1 ? comparison_us(world, *device) : 0, polls.cpu_us_a_poll};
  Ranks(world, *device).reduce(costs, ReduceOp::max);
  const auto [record, comparison, poll] = costs;
  const double looks_a_step = report.step_ms / polls.poll_every_ms;
  const double steps[] = {record * static_cast<double>(report.operations), comparison, poll * looks_a_step};
  std::string text = fmt::format("{} ranks, a step of {:.2f} ms with {} operations between ranks, of each rank\n",
                                 report.ranks, report.step_ms, report.operations);
  text += row("record", fmt::format("{:.3f} us an operation", record), steps[0], report.step_ms);
  text += row("fingerprint", "one all-reduce of 16 bytes", steps[1], report.step_ms);
  text += row("watchdog", fmt::format("{:.1f} us a look, every {:.0f} ms", poll, polls.poll_every_ms), steps[2],
              report.step_ms);
  return text + row("together", "", steps[0] + steps[1] + steps[2], report.step_ms);
}

}  // namespace zs::bench
