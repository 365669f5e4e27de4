#include "bench/overlap_bench.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <optional>

#include "bench/median.h"
#include "model/train/session.h"

namespace zs::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr float kLearningRate = 1e-4f;
constexpr double kStepTimeouts = 20;  // a step may take longer than the longest wait for a peer inside one of its operations
constexpr int kCommunicationRounds = 3;
constexpr const char* kPhases[] = {"forward", "backward", "optimizer"};

double ms_since(Clock::time_point start) { return std::chrono::duration<double, std::milli>(Clock::now() - start).count(); }

constexpr std::array kCommunicating = {StreamRole::unshard, StreamRole::reduce, StreamRole::finish};

bool communicates(StreamRole stream) { return std::find(kCommunicating.begin(), kCommunicating.end(), stream) != kCommunicating.end(); }

/// Writes to all of a device's memory. What nobody has written to is one page of zeros in the processor's caches, wherever it is read, and
/// without communication nobody writes what would have been gathered.
void touch_memory(Device& device) {
  if (device.kind() != DeviceKind::cpu) return;
  for (const auto& [address, bytes] : device.pool().allocations()) std::memset(address, 0, static_cast<std::size_t>(bytes));
}

TrainPlan whole_plan(const Config& config, const World& world, int threads) {
  PlanOptions options = plan_options(world, threads);
  options.has_every_micro_batch = true;
  return make_plan(config, options);
}

}  // namespace

OverlapBench::OverlapBench(World& world, const StepOptions& options, const Config& config)
    : world_(world),
      options_(options),
      config_(config),
      share_(cpu_share(world.local_rank(), world.local_size())),
      plan_(whole_plan(config, world, share_.threads)) {
  for (const TraceEntry& entry : plan_.trace) {
    if (entry.kind == TraceEntry::Kind::op && entry.stream == StreamRole::compute) compute_phases_.push_back(entry.phase);
  }
}

OverlapReport OverlapBench::run() {
  bind_this_thread(share_.cpus);
  const DeviceOptions device_options{
      .threads = share_.threads, .cpus = share_.cpus, .sync_timeout_s = kStepTimeouts * config_.comm.timeout_s, .memory = world_.arena()};
  Steps steps, compute;
  CommunicationPrices prices;
  {
    const auto device = plan_.create_device(device_options);
    Session session(*device, world_, config_);
    plan_.apply_order(session.runtime());
    steps = measure_steps(session);
    prices = measure_communication(session, log_step(session));
  }
  {
    const auto null = make_null_world(world_);
    const TrainPlan plan = whole_plan(config_, *null, share_.threads);
    const auto device = plan.create_device(device_options);
    touch_memory(*device);
    Session session(*device, *null, config_);
    plan.apply_order(session.runtime());
    compute = measure_steps(session);
  }
  return report(steps, compute, prices);
}

double OverlapBench::step(Session& session) {
  // Without communication nothing else keeps the ranks together, and they share the machine.
  world_.agree(0, "");
  const auto start = Clock::now();
  session.enqueue_step(++step_, kLearningRate, made_up_samples(config_), false);
  session.finish_step();
  world_.agree(0, "");
  return ms_since(start);
}

OverlapBench::Steps OverlapBench::measure_steps(Session& session) {
  for (std::int64_t i = 0; i < options_.warmup; ++i) step(session);
  std::vector<double> durations;
  for (std::int64_t i = 0; i < options_.steps; ++i) durations.push_back(step(session));
  Profile& profile = session.device().profile();
  profile.clear();
  profile.start();
  for (std::int64_t i = 0; i < options_.profile_steps; ++i) step(session);
  profile.stop();
  Steps result = sum_up(profile);
  result.ms = median(durations);
  return result;
}

OverlapBench::Steps OverlapBench::sum_up(const Profile& profile) const {
  Steps result{.compute_op_ms = std::vector<double>(compute_phases_.size())};
  std::size_t count = 0;
  std::int64_t before_ns = 0;
  for (const OpTime& time : profile.times(StreamRole::compute)) {
    if (time.is_wait) continue;
    const std::size_t op = count++ % compute_phases_.size();
    if (op == 0) before_ns = time.start_ns;
    result.compute_op_ms[op] += time.ms() / static_cast<double>(options_.profile_steps);
    result.phase_ms[compute_phases_[op]] +=
        static_cast<double>(time.end_ns - before_ns) * 1e-6 / static_cast<double>(options_.profile_steps);
    before_ns = time.end_ns;
  }
  const std::size_t expected = compute_phases_.size() * static_cast<std::size_t>(options_.profile_steps);
  ZS_CHECK(count == expected, "{} ops ran on the compute stream, {} are in the plan", count, expected);
  return result;
}

std::vector<Action> OverlapBench::log_step(Session& session) {
  std::vector<Action> actions;
  session.runtime().log_actions(&actions);
  step(session);
  session.runtime().log_actions(nullptr);
  return actions;
}

OverlapBench::CommunicationPrices OverlapBench::measure_communication(Session& session, const std::vector<Action>& actions) {
  Executor& executor = session.runtime().executor();
  Profile& profile = session.device().profile();
  CommunicationPrices prices;
  for (int round = 0; round < kCommunicationRounds; ++round) {
    profile.clear();
    profile.start();
    for (const Action& action : actions) {
      executor.run({action});
      session.device().synchronize();
    }
    profile.stop();
    executor.clear_gradients();
    executor.masters_updated();
    for (const StreamRole stream : kCommunicating) {
      for (const OpTime& time : profile.times(stream)) {
        if (time.is_wait) continue;
        const auto [price, is_new] = prices.try_emplace({stream, time.name}, time.ms());
        price->second = std::min(price->second, time.ms());
      }
    }
  }
  return prices;
}

OverlapReport OverlapBench::report(const Steps& steps, const Steps& compute, const CommunicationPrices& prices) const {
  const auto price_of = [&](const TraceEntry& op, std::size_t index) {
    if (!communicates(op.stream)) return compute.compute_op_ms[index];
    const auto price = prices.find({op.stream, op.op.name});
    ZS_CHECK(price != prices.end(), "{} on the {} stream was not measured alone", op.op.name, name_of(op.stream));
    return price->second;
  };
  OverlapReport report{.preset = options_.preset,
                       .dtype = config_.precision.param,
                       .transport = world_.transport(),
                       .strategy = config_.shard.strategy,
                       .ranks = world_.size(),
                       .threads = share_.threads,
                       .micro_batch = config_.train.micro_batch,
                       .micro_batches = config_.train.global_batch / config_.train.micro_batch / world_.size(),
                       .sequence = config_.train.sequence,
                       .prefetch = config_.shard.prefetch,
                       .limit = config_.shard.limit,
                       .max_reductions_in_flight = config_.shard.max_reductions_in_flight,
                       .reshard_after_forward = config_.shard.reshard_after_forward.str()};
  std::map<std::string, double> communication;
  for (const TraceEntry& entry : plan_.trace) {
    if (entry.kind == TraceEntry::Kind::op && communicates(entry.stream)) communication[entry.phase] += price_of(entry, 0);
  }
  report.step = {.name = "step", .compute_ms = compute.ms, .step_ms = steps.ms};
  for (const char* phase : kPhases) {
    report.phases.push_back({phase, compute.phase_ms.at(phase), communication[phase], steps.phase_ms.at(phase)});
    report.step.communication_ms += communication[phase];
  }
  // Between hosts there is one link; inside one, ranks copy with processors of their own.
  const bool is_across_hosts = world_.size() > world_.local_size();
  report.plan = simulate(plan_.trace, price_of, [&](const TraceEntry& op) { return is_across_hosts && communicates(op.stream); });
  return report;
}

}  // namespace zs::bench
