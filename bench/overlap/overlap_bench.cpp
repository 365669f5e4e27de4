#include "bench/overlap/overlap_bench.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>

#include "bench/common/clock.h"
#include "bench/common/median.h"
#include "bench/kernels/gpu_calls.h"
#include "comm/nccl/nccl_memory.h"
#include "model/train/rank/startup.h"
#include "model/train/session/session.h"
#include "runtime/device/memory_limit.h"
#include "runtime/tensor/host_view.h"

namespace zs::bench {
namespace {

constexpr int kCommunicationRounds = 3;
constexpr const char* kPhases[] = {"forward", "backward", "optimizer"};

constexpr std::array kCommunicating = {StreamRole::unshard, StreamRole::reduce, StreamRole::finish};
/// What can hide behind compute, and the streams that it is on.
const std::vector<std::pair<const char*, std::vector<StreamRole>>> kKinds = {
    {"gathers", {StreamRole::unshard}},
    {"reductions", {StreamRole::reduce, StreamRole::finish}},
    {"offload", {StreamRole::offload}}};

bool communicates(StreamRole stream) {
  return std::find(kCommunicating.begin(), kCommunicating.end(), stream) != kCommunicating.end();
}

bool moves(StreamRole stream) { return communicates(stream) || stream == StreamRole::offload; }

/// An update that the host makes, on a stream that else communicates.
bool is_by_host(const std::string& op) { return op.find("_on_host:") != op.npos; }

void note_least(std::map<NumberedOps::Key, double>& prices, const NumberedOps::Key& op, double ms) {
  const auto [price, is_new] = prices.try_emplace(op, ms);
  price->second = std::min(price->second, ms);
}

/// Writes to all of a device's memory. What nobody has written to is one page of zeros in the processor's caches,
/// wherever it is read, and without communication nobody writes what would have been gathered.
void touch_memory(Device& device) {
  if (device.kind() != DeviceKind::cpu) return;
  for (const auto& [address, bytes] : device.pool().allocations())
    std::memset(address, 0, static_cast<std::size_t>(bytes));
}

/// The run without communication has the units of the one with it.
Config with_units_of(Config config, const World& world, const Machine& machine) {
  config.shard.unit_mib = unit_mib(config, machine.plan_options(world, config, 1).transport, world.size());
  return config;
}

Config without_offload(Config config) {
  for (std::string* place : {&config.offload.weights, &config.offload.gradients, &config.offload.accumulator,
                             &config.offload.moments, &config.offload.activations, &config.offload.update})
    *place = "device";
  return config;
}

/// Of a run in which nothing is exchanged.
Machine without_transport(Machine machine) {
  machine.gpus.transport = Transport::null;
  return machine;
}

TrainPlan whole_plan(const Config& config, const World& world, const Machine& machine, int threads) {
  PlanOptions options = machine.plan_options(world, config, threads);
  options.has_every_micro_batch = true;
  return make_plan(config, options);
}

/// What the host looks at, which no plan has, and which on a GPU comes behind a step for the most part.
bool is_of_the_host(const OpTime& time) { return time.name.starts_with(HostView::kDownload); }

/// From the start of the step's first entry to the end of its last one, of all streams.
struct Span {
  std::int64_t first_ns = std::numeric_limits<std::int64_t>::max(), last_ns = 0;
  double ms() const { return static_cast<double>(last_ns - first_ns) * 1e-6; }
};

Span span_of(const Profile& profile) {
  Span span;
  for (int role = 0; role < kStreamRoles; ++role) {
    for (const OpTime& time : profile.times(static_cast<StreamRole>(role))) {
      if (is_of_the_host(time)) continue;
      span.first_ns = std::min(span.first_ns, time.start_ns);
      span.last_ns = std::max(span.last_ns, time.end_ns);
    }
  }
  return span;
}

}  // namespace

std::string why_nothing_hides(int ranks, const GpuRanks& gpus) {
  if (ranks == 1) return "one rank exchanges nothing: what hides behind compute is meaningful on several GPUs only";
  if (gpus.transport == Transport::null) return "nothing is exchanged (transport null): there is nothing to hide";
  if (gpus.ranks_a_gpu > 1)
    return fmt::format(
        "up to {} ranks share a GPU and take turns on it: what hides behind compute is meaningful on a GPU a rank only",
        gpus.ranks_a_gpu);
  if (gpus.transport == Transport::staged)
    return "what is staged through the hosts makes them wait, so nothing is enqueued beside it: it is meaningful over "
           "NCCL only";
  return "";
}

OverlapBench::OverlapBench(World& world, const StepOptions& options, const Config& config, Machine machine)
    : world_(world),
      options_(options),
      config_(with_units_of(config, world, machine)),
      machine_(std::move(machine)),
      share_(cpu_share(world.local_rank(), world.local_size())),
      alone_config_(without_offload(config_)),
      plan_(whole_plan(config_, world, machine_, share_.threads)),
      alone_plan_(whole_plan(alone_config_, *make_null_world(world), without_transport(machine_), share_.threads)),
      ops_(plan_),
      alone_ops_(alone_plan_) {
  if (config.cuda.graph || config.cuda.tune_products)
    throw Error(
        ExitCode::config,
        "operations are compared one by one: cuda.graph hides them, cuda.tune_products may compute them otherwise", {},
        "leave both out");
}

OverlapBench::ComputeOps::ComputeOps(const TrainPlan& plan) {
  NumberedOps numbers;
  for (const TraceEntry& entry : plan.trace) {
    if (entry.kind != TraceEntry::Kind::op || entry.stream != StreamRole::compute) continue;
    keys.push_back(numbers.next(entry.stream, entry.op.name));
    phases.push_back(entry.phase);
  }
}

/// A model in training on this rank, and what its steps took.
struct OverlapBench::Training {
  explicit Training(const ComputeOps& ops_of_step) : ops(ops_of_step) {}
  const ComputeOps& ops;
  NcclOptions nccl;
  std::unique_ptr<Device> device;
  std::unique_ptr<World> world;  // where it is not the ranks' own
  std::unique_ptr<Session> session;
  std::int64_t step = 0;
  std::vector<double> durations, spans;  // of the timed steps, of the profiled ones, in milliseconds
  std::vector<ComputeTimes> profiled;
  std::map<NumberedOps::Key, double> offload_ms;  // the least of the profiled steps
};

OverlapReport OverlapBench::run() {
  bind_this_thread(share_.cpus);
  const bool takes_turns = fit_both();
  std::unique_ptr<Training> connected = start_connected(), alone = takes_turns ? start_alone() : nullptr;
  take_turns(takes_turns ? std::vector{connected.get(), alone.get()} : std::vector{connected.get()});
  const Steps steps = medians(*connected);
  const CommunicationPrices prices = measure_communication(*connected->session, log_step(*connected));
  if (!takes_turns) {
    connected.reset();
    alone = start_alone();
    take_turns({alone.get()});
  }
  OverlapReport result = report(steps, medians(*alone), prices);
  result.takes_turns = takes_turns;
  return result;
}

bool OverlapBench::fit_both() {
  if (is_on_gpus()) return false;  // whose clocks no neighbour slows, and whose memory one model may fill
  constexpr double kShare = 0.9;   // what libraries and message buffers need is in no plan
  const auto bytes = static_cast<double>(world_.local_size() * (plan_.reserved_bytes + alone_plan_.reserved_bytes));
  const MemoryLimit limit = memory_limit_bytes();
  const auto allowed =
      static_cast<double>((limit.bytes - limit.used_bytes) * (limit.is_per_process ? world_.local_size() : 1));
  const bool fit = bytes < kShare * std::min(allowed, startup_facts(world_, config_).free_gib * (1 << 30));
  return world_.agree(fit ? 0 : 1, "").code == 0;
}

DeviceOptions OverlapBench::device_options() const {
  DeviceOptions options = machine_.device_options(config_, share_);
  if (!is_on_gpus()) options.memory = world_.arena();
  return options;
}

std::unique_ptr<OverlapBench::Training> OverlapBench::start_connected() {
  auto training = std::make_unique<Training>(ops_);
  training->nccl = machine_.nccl_options(config_);
  DeviceOptions options = device_options();
  if (is_on_gpus()) options.memory = training->nccl.memory.get();
  training->device = plan_.create_device(options, machine_.make_device);
  if (is_on_gpus()) gpu_ = gpu_of(*training->device).name;
  training->world = machine_.connect(world_, *training->device, training->nccl);
  World& world = training->world ? *training->world : world_;
  transport_ = world.transport();
  training->session = std::make_unique<Session>(*training->device, world, config_);
  plan_.apply_order(training->session->runtime());
  return training;
}

std::unique_ptr<OverlapBench::Training> OverlapBench::start_alone() {
  auto training = std::make_unique<Training>(alone_ops_);
  training->world = make_null_world(world_);
  training->device = alone_plan_.create_device(device_options(), machine_.make_device);
  touch_memory(*training->device);
  training->session = std::make_unique<Session>(*training->device, *training->world, alone_config_);
  alone_plan_.apply_order(training->session->runtime());
  return training;
}

double OverlapBench::step(Training& training) {
  // Without communication nothing else keeps the ranks together, and they share the machine.
  world_.agree(0, "");
  const auto start = Clock::now();
  training.session->enqueue_step(++training.step, kLearningRate, made_up_samples(config_), false);
  training.session->finish_step();
  world_.agree(0, "");
  return ms_since(start);
}

void OverlapBench::profile_step(Training& training) {
  Profile& profile = training.device->profile();
  profile.clear();
  profile.start();
  step(training);
  profile.stop();
  training.profiled.push_back(compute_times(training));
  NumberedOps numbers;
  for (const OpTime& time : profile.times(StreamRole::offload)) {
    if (!time.is_wait) note_least(training.offload_ms, numbers.next(StreamRole::offload, time.name), time.ms());
  }
  for (const OpTime& time : profile.times(StreamRole::finish)) {
    if (is_by_host(time.name)) note_least(training.offload_ms, numbers.next(StreamRole::finish, time.name), time.ms());
  }
  training.spans.push_back(span_of(profile).ms());
}

void OverlapBench::take_turns(const std::vector<Training*>& trainings) {
  const auto repeat = [&](std::int64_t times, const auto& run) {
    for (std::int64_t i = 0; i < times; ++i) {
      for (Training* training : trainings) run(*training);
    }
  };
  repeat(options_.warmup, [&](Training& training) { step(training); });
  repeat(options_.steps, [&](Training& training) { training.durations.push_back(step(training)); });
  repeat(options_.profile_steps, [&](Training& training) { profile_step(training); });
}

OverlapBench::Steps OverlapBench::medians(const Training& training) const {
  std::vector<std::vector<double>> op_ms(training.ops.phases.size());
  std::map<std::string, std::vector<double>> phase_ms;
  for (const ComputeTimes& times : training.profiled) {
    for (std::size_t op = 0; op < op_ms.size(); ++op) op_ms[op].push_back(times.op_ms[op]);
    for (const auto& [phase, ms] : times.phase_ms) phase_ms[phase].push_back(ms);
  }
  const std::vector<double>& timed = is_on_gpus() ? training.spans : training.durations;
  Steps result{.ms = median(timed), .host_ms = median(training.durations), .spread_ms = half_range(timed)};
  for (const std::vector<double>& ms : op_ms) result.compute_op_ms.push_back(median(ms));
  for (const auto& [phase, ms] : phase_ms) result.phase_ms[phase] = median(ms);
  result.offload_ms = training.offload_ms;
  return result;
}

OverlapBench::ComputeTimes OverlapBench::compute_times(const Training& training) const {
  const Profile& profile = training.device->profile();
  const std::vector<std::string>& phases = training.ops.phases;
  ComputeTimes times;
  std::int64_t before_ns = span_of(profile).first_ns;  // the first gathers are forward's
  for (const OpTime& time : profile.times(StreamRole::compute)) {
    if (time.is_wait || is_of_the_host(time)) continue;
    const std::size_t op = times.op_ms.size();
    ZS_CHECK(op < phases.size(), "more ops ran on the compute stream than the {} of the plan", phases.size());
    times.op_ms.push_back(time.ms());
    times.phase_ms[phases[op]] += static_cast<double>(time.end_ns - before_ns) * 1e-6;
    before_ns = time.end_ns;
  }
  ZS_CHECK(times.op_ms.size() == phases.size(), "{} ops ran on the compute stream, {} are in the plan",
           times.op_ms.size(), phases.size());
  return times;
}

std::vector<Action> OverlapBench::log_step(Training& training) {
  std::vector<Action> actions;
  training.session->runtime().log_actions(&actions);
  step(training);
  training.session->runtime().log_actions(nullptr);
  return actions;
}

OverlapBench::CommunicationPrices OverlapBench::measure_communication(Session& session,
                                                                      const std::vector<Action>& actions) {
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
        note_least(prices, ops.next(stream, time.name), time.ms());
      }
    }
  }
  return prices;
}

std::vector<double> OverlapBench::compute_prices(const Steps& steps, const Steps& compute) const {
  std::map<std::string, std::ptrdiff_t> more;  // of that name, than without offload
  for (const auto& key : ops_.keys) ++more[std::get<std::string>(key)];
  for (const auto& key : alone_ops_.keys) --more[std::get<std::string>(key)];
  std::map<NumberedOps::Key, double> alone;
  for (std::size_t i = 0; i < alone_ops_.keys.size(); ++i) alone[alone_ops_.keys[i]] = compute.compute_op_ms[i];
  std::vector<double> prices = steps.compute_op_ms;
  for (std::size_t i = 0; i < prices.size(); ++i)
    if (more[std::get<std::string>(ops_.keys[i])] == 0) prices[i] = alone.at(ops_.keys[i]);
  return prices;
}

std::map<const TraceEntry*, double> OverlapBench::moving_prices(const Steps& steps,
                                                                const CommunicationPrices& prices) const {
  NumberedOps ops;
  std::map<const TraceEntry*, double> moving;
  for (const TraceEntry& entry : plan_.trace) {
    if (entry.kind != TraceEntry::Kind::op || !moves(entry.stream)) continue;
    const auto& known = communicates(entry.stream) && !is_by_host(entry.op.name) ? prices : steps.offload_ms;
    const auto price = known.find(ops.next(entry.stream, entry.op.name));
    ZS_CHECK(price != known.end(), "{} on the {} stream was not measured", entry.op.name, name_of(entry.stream));
    moving[&entry] = price->second;
  }
  return moving;
}

OverlapReport OverlapBench::report(const Steps& steps, const Steps& compute, const CommunicationPrices& prices) const {
  const std::map<const TraceEntry*, double> moving = moving_prices(steps, prices);
  const std::vector<double> compute_ms = compute_prices(steps, compute);
  const auto price_of = [&](const TraceEntry& op, std::size_t index) {
    return moves(op.stream) ? moving.at(&op) : compute_ms[index];
  };
  OverlapReport report{.preset = options_.preset,
                       .dtype = config_.precision.param,
                       .transport = transport_,
                       .strategy = config_.shard.strategy,
                       .gpu = gpu_,
                       .ranks = world_.size(),
                       .threads = share_.threads,
                       .micro_batch = config_.train.micro_batch,
                       .micro_batches = micro_batches_a_rank(config_, world_.size()),
                       .sequence = config_.train.sequence,
                       .prefetch = config_.shard.prefetch,
                       .limit = config_.shard.limit,
                       .max_reductions_in_flight = config_.shard.max_reductions_in_flight,
                       .reshard_after_forward = config_.shard.reshard_after_forward.str()};
  std::map<std::string, double> communication;
  for (const auto& [op, ms] : moving) communication[op->phase] += ms;
  report.step = {.name = "step", .compute_ms = compute.ms, .step_ms = steps.ms};
  report.host_compute_ms = compute.host_ms;
  report.host_step_ms = steps.host_ms;
  report.spread_ms = std::max(compute.spread_ms, steps.spread_ms);
  if (is_on_gpus() && !config_.offload.uses_host()) report.note = why_nothing_hides(world_.size(), machine_.gpus);
  // There is one link between hosts, and from a GPU to others; inside a host, ranks copy with processors of their own.
  const bool has_one_link = is_on_gpus() || world_.size() > world_.local_size();
  const auto needs_link = [&](const TraceEntry& op) { return has_one_link && communicates(op.stream); };
  report.plan = simulate(plan_.trace, price_of, needs_link);
  for (const auto& [name, streams] : kKinds) {
    const auto is_of = [&own = streams](StreamRole stream) {
      return std::find(own.begin(), own.end(), stream) != own.end();
    };
    OverlapReport::Kind& kind = report.kinds.emplace_back(OverlapReport::Kind{name});
    for (const auto& [op, ms] : moving) kind.ms += is_of(op->stream) ? ms : 0;
    const Simulation only = simulate(
        plan_.trace,
        [&](const TraceEntry& op, std::size_t index) {
          return moves(op.stream) && !is_of(op.stream) ? 0.0 : price_of(op, index);
        },
        needs_link);
    kind.hideable_ms = kind.ms - only.exposed_ms();
  }
  report.step.planned_exposed_ms = report.plan.exposed_ms();
  for (const char* phase : kPhases) {
    report.phases.push_back({phase, compute.phase_ms.at(phase), communication[phase], steps.phase_ms.at(phase),
                             report.plan.phases.at(phase).exposed_ms()});
    report.step.communication_ms += communication[phase];
  }
  return report;
}

}  // namespace zs::bench
