#include "bench/overlap_bench.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>

#include "bench/clock.h"
#include "bench/gpu_calls.h"
#include "bench/median.h"
#include "comm/nccl_memory.h"
#include "model/train/session.h"
#include "runtime/tensor/host_view.h"

namespace zs::bench {
namespace {

constexpr int kCommunicationRounds = 3;
constexpr const char* kPhases[] = {"forward", "backward", "optimizer"};

constexpr std::array kCommunicating = {StreamRole::unshard, StreamRole::reduce, StreamRole::finish};

bool communicates(StreamRole stream) { return std::find(kCommunicating.begin(), kCommunicating.end(), stream) != kCommunicating.end(); }

/// Writes to all of a device's memory. What nobody has written to is one page of zeros in the processor's caches, wherever it is read, and
/// without communication nobody writes what would have been gathered.
void touch_memory(Device& device) {
  if (device.kind() != DeviceKind::cpu) return;
  for (const auto& [address, bytes] : device.pool().allocations()) std::memset(address, 0, static_cast<std::size_t>(bytes));
}

/// The run without communication has the units of the one with it.
Config with_units_of(Config config, const World& world, const Machine& machine) {
  config.shard.unit_mib = unit_mib(config, machine.plan_options(world, config, 1).transport, world.size());
  return config;
}

TrainPlan whole_plan(const Config& config, const World& world, const Machine& machine, int threads) {
  PlanOptions options = machine.plan_options(world, config, threads);
  options.has_every_micro_batch = true;
  return make_plan(config, options);
}

/// What the host looks at, which no plan has, and which on a GPU comes behind a step for the most part.
bool is_of_the_host(const OpTime& time) { return time.name.starts_with(HostView::kDownload); }

/// From the start of the step's first entry to the end of its last one, of all streams.
double span_ms(const Profile& profile) {
  std::int64_t first_ns = std::numeric_limits<std::int64_t>::max(), last_ns = 0;
  for (int role = 0; role < kStreamRoles; ++role) {
    for (const OpTime& time : profile.times(static_cast<StreamRole>(role))) {
      if (is_of_the_host(time)) continue;
      first_ns = std::min(first_ns, time.start_ns);
      last_ns = std::max(last_ns, time.end_ns);
    }
  }
  return static_cast<double>(last_ns - first_ns) * 1e-6;
}

}  // namespace

std::string why_nothing_hides(int ranks, const GpuRanks& gpus) {
  if (ranks == 1) return "one rank exchanges nothing: what hides behind compute is meaningful on several GPUs only";
  if (gpus.transport == Transport::null) return "nothing is exchanged (transport null): there is nothing to hide";
  if (gpus.ranks_a_gpu > 1)
    return fmt::format("up to {} ranks share a GPU and take turns on it: what hides behind compute is meaningful on a GPU a rank only",
                       gpus.ranks_a_gpu);
  if (gpus.transport == Transport::staged)
    return "what is staged through the hosts makes them wait, so nothing is enqueued beside it: it is meaningful over NCCL only";
  return "";
}

OverlapBench::OverlapBench(World& world, const StepOptions& options, const Config& config, Machine machine)
    : world_(world),
      options_(options),
      config_(with_units_of(config, world, machine)),
      machine_(std::move(machine)),
      share_(cpu_share(world.local_rank(), world.local_size())),
      plan_(whole_plan(config_, world, machine_, share_.threads)) {
  if (config.cuda.graph) {
    throw Error(ExitCode::config, "cuda.graph = true hides the operations of a step, which this benchmark looks at one by one", {},
                "leave it out");
  }
  for (const TraceEntry& entry : plan_.trace) {
    if (entry.kind == TraceEntry::Kind::op && entry.stream == StreamRole::compute) compute_phases_.push_back(entry.phase);
  }
}

OverlapReport OverlapBench::run() {
  bind_this_thread(share_.cpus);
  DeviceOptions device_options = machine_.device_options(config_, share_);
  if (!is_on_gpus()) device_options.memory = world_.arena();
  DeviceOptions connected_options = device_options;
  const NcclOptions nccl = machine_.nccl_options(config_);
  if (is_on_gpus()) connected_options.memory = nccl.memory.get();
  Steps steps, compute;
  CommunicationPrices prices;
  {
    const auto device = plan_.create_device(connected_options, machine_.make_device);
    if (is_on_gpus()) gpu_ = gpu_of(*device).name;
    const std::unique_ptr<World> gpu_world = machine_.connect(world_, *device, nccl);
    World& world = gpu_world ? *gpu_world : world_;
    transport_ = world.transport();
    Session session(*device, world, config_);
    plan_.apply_order(session.runtime());
    steps = measure_steps(session);
    prices = measure_communication(session, log_step(session));
  }
  {
    const auto null = make_null_world(world_);
    Machine machine = machine_;
    machine.gpus.transport = Transport::null;
    const TrainPlan plan = whole_plan(config_, *null, machine, share_.threads);
    const auto device = plan.create_device(device_options, machine_.make_device);
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
  std::vector<double> durations, spans;
  for (std::int64_t i = 0; i < options_.steps; ++i) durations.push_back(step(session));
  std::vector<std::vector<double>> op_ms(compute_phases_.size());
  std::map<std::string, std::vector<double>> phase_ms;
  Profile& profile = session.device().profile();
  for (std::int64_t i = 0; i < options_.profile_steps; ++i) {
    profile.clear();
    profile.start();
    step(session);
    profile.stop();
    const ComputeTimes times = compute_times(profile);
    for (std::size_t op = 0; op < op_ms.size(); ++op) op_ms[op].push_back(times.op_ms[op]);
    for (const auto& [phase, ms] : times.phase_ms) phase_ms[phase].push_back(ms);
    spans.push_back(span_ms(profile));
  }
  Steps result{.host_ms = median(durations)};
  result.ms = is_on_gpus() ? median(spans) : result.host_ms;
  for (const std::vector<double>& ms : op_ms) result.compute_op_ms.push_back(median(ms));
  for (const auto& [phase, ms] : phase_ms) result.phase_ms[phase] = median(ms);
  return result;
}

OverlapBench::ComputeTimes OverlapBench::compute_times(const Profile& profile) const {
  ComputeTimes times;
  std::int64_t before_ns = 0;
  for (const OpTime& time : profile.times(StreamRole::compute)) {
    if (time.is_wait || is_of_the_host(time)) continue;
    const std::size_t op = times.op_ms.size();
    ZS_CHECK(op < compute_phases_.size(), "more ops ran on the compute stream than the {} of the plan", compute_phases_.size());
    if (op == 0) before_ns = time.start_ns;
    times.op_ms.push_back(time.ms());
    times.phase_ms[compute_phases_[op]] += static_cast<double>(time.end_ns - before_ns) * 1e-6;
    before_ns = time.end_ns;
  }
  ZS_CHECK(times.op_ms.size() == compute_phases_.size(), "{} ops ran on the compute stream, {} are in the plan", times.op_ms.size(),
           compute_phases_.size());
  return times;
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
      if (is_on_gpus()) world_.agree(0, "");  // the first rank's GPU would wait for the last one's host
      executor.run({action});
      session.device().synchronize();
    }
    profile.stop();
    executor.clear_gradients();
    executor.masters_updated();
    NumberedOps ops;
    for (const StreamRole stream : kCommunicating) {
      for (const OpTime& time : profile.times(stream)) {
        if (time.is_wait) continue;
        const auto [price, is_new] = prices.try_emplace(ops.next(stream, time.name), time.ms());
        price->second = std::min(price->second, time.ms());
      }
    }
  }
  return prices;
}

OverlapReport OverlapBench::report(const Steps& steps, const Steps& compute, const CommunicationPrices& prices) const {
  NumberedOps ops;
  std::map<const TraceEntry*, double> communicating;  // by op of the plan's trace: how long it takes alone
  for (const TraceEntry& entry : plan_.trace) {
    if (entry.kind != TraceEntry::Kind::op || !communicates(entry.stream)) continue;
    const auto price = prices.find(ops.next(entry.stream, entry.op.name));
    ZS_CHECK(price != prices.end(), "{} on the {} stream was not measured alone", entry.op.name, name_of(entry.stream));
    communicating[&entry] = price->second;
  }
  const auto price_of = [&](const TraceEntry& op, std::size_t index) {
    return communicates(op.stream) ? communicating.at(&op) : compute.compute_op_ms[index];
  };
  OverlapReport report{.preset = options_.preset,
                       .dtype = config_.precision.param,
                       .transport = transport_,
                       .strategy = config_.shard.strategy,
                       .gpu = gpu_,
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
  for (const auto& [op, ms] : communicating) communication[op->phase] += ms;
  report.step = {.name = "step", .compute_ms = compute.ms, .step_ms = steps.ms};
  report.host_compute_ms = compute.host_ms;
  report.host_step_ms = steps.host_ms;
  if (is_on_gpus()) report.note = why_nothing_hides(world_.size(), machine_.gpus);
  for (const char* phase : kPhases) {
    report.phases.push_back({phase, compute.phase_ms.at(phase), communication[phase], steps.phase_ms.at(phase)});
    report.step.communication_ms += communication[phase];
  }
  // Between hosts there is one link, and so there is from a GPU to others; inside a host, ranks copy with processors of their own.
  const bool has_one_link = is_on_gpus() || world_.size() > world_.local_size();
  report.plan = simulate(plan_.trace, price_of, [&](const TraceEntry& op) { return has_one_link && communicates(op.stream); });
  return report;
}

}  // namespace zs::bench
