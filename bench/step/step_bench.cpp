#include "bench/step/step_bench.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "bench/common/clock.h"
#include "bench/common/median.h"
#include "bench/common/process_memory.h"
#include "bench/common/product_ceiling.h"
#include "bench/common/ranks.h"
#include "comm/health/watchdog.h"
#include "comm/nccl/nccl_memory.h"
#include "model/train/plan/ceiling.h"
#include "model/train/rank/startup.h"
#include "model/train/session/session.h"
#include "runtime/base/random.h"
#include "runtime/base/standard_streams.h"

namespace zs::bench {
namespace {

constexpr int kStepCeilingRounds = 4;  // before the steps, and as many after them

/// Collective. Nothing when some rank does not know its `own`.
std::optional<StepReport::Pss> pss_of(Ranks& ranks, const std::optional<std::int64_t>& own) {
  if (ranks.max(own ? 0 : 1) > 0) return std::nullopt;
  const auto bytes = static_cast<double>(*own);
  return StepReport::Pss{.sum = ranks.sum(bytes), .rank_max = ranks.max(bytes)};
}

}  // namespace

Config step_config(const StepOptions& options, int ranks) {
  std::vector<std::string> settings = {
      "name=bench_step",
      "model.preset=" + options.preset,
      std::string("data.kind=") + (options.preset.ends_with("tiny") ? "text" : "tokens"),
      "data.train=made-up",
      "precision.param=" + options.dtype,
      fmt::format("train.micro_batch={}", options.micro_batch),
      fmt::format("train.global_batch={}", options.micro_batch * options.micro_batches * ranks),
      fmt::format("train.sequence={}", options.sequence),
      fmt::format("train.steps={}", options.warmup + options.steps + options.profile_steps),
  };
  settings.insert(settings.end(), options.settings.begin(), options.settings.end());
  try {
    Config config = parse_config("", "bench_step", settings);
    check_ranks(config, ranks);
    // The world is there already, made without them.
    if (config.comm.transport != "auto" || config.comm.ranks != 1)
      throw Error(ExitCode::usage, "comm.transport and comm.ranks choose nothing here", "--set",
                  "set ZSHARD_TRANSPORT, and start ranks with mpirun");
    if (config.comm.omit != "none")
      throw Error(ExitCode::usage, "comm.omit leaves out what is measured here", "--set",
                  "leave it out, or give it to train");
    if (config.offload.update == "auto")
      throw Error(ExitCode::usage, "offload.update = \"auto\" is what train measures and chooses", "--set",
                  "set it to host or device");
    if (config.cuda.tune_products && options.warmup == 0)
      throw Error(ExitCode::usage, "cuda.tune_products times products in the first step, which would be measured",
                  "--warmup", "give 1 or more");
    return config;
  } catch (const Error& error) {
    throw Error(ExitCode::usage, error.what_happened(), error.where(), error.what_to_do());
  }
}

ReadSamples made_up_samples(const Config& config) {
  return [&config, rng = CounterRng(static_cast<std::uint64_t>(config.train.seed), hash_name("made-up tokens"))](
             std::int64_t first) {
    const std::int64_t sequence = config.train.sequence;
    const auto token = [&](std::int64_t sample, std::int64_t position) {
      const auto counter = static_cast<std::uint64_t>(sample * (sequence + 1) + position);
      return static_cast<std::int32_t>(rng.bits(counter) % static_cast<std::uint64_t>(config.model.vocab));
    };
    SampleBatch batch;
    for (std::int64_t sample = first; sample < first + config.train.micro_batch; ++sample) {
      for (std::int64_t position = 0; position < sequence; ++position) {
        batch.inputs.push_back(token(sample, position));
        batch.targets.push_back(token(sample, position + 1));
      }
    }
    return batch;
  };
}

StepBench::StepBench(World& world, const StepOptions& options, const Config& config, Machine machine)
    : world_(world),
      options_(options),
      config_(config),
      machine_(std::move(machine)),
      share_(cpu_share(world.local_rank(), world.local_size())),
      host_device_(device_kind(config) == DeviceKind::cuda ? Device::create(DeviceKind::cpu, {}) : nullptr) {}

void StepBench::measure_ceiling(StepReport& report) {
  const DType dtype = config_.precision.param == "bf16" ? DType::bf16 : DType::f32;
  double gflops = 0;
  if (!host_device_) {
    gflops = ProductCeiling(world_, device_options(), dtype).measure(kStepCeilingRounds);
  } else {
    const auto gpu = machine_.make_device(DeviceKind::cuda, device_options());
    Ranks ranks(world_, *host_device_);
    GpuProductCeiling ceiling(*gpu, ranks, dtype, machine_.gpu_ceilings);
    for (int round = 0; round < kStepCeilingRounds; ++round) gflops = ceiling.measure();
  }
  report.product_ceiling_gflops = std::max(report.product_ceiling_gflops, gflops);
}

StepReport StepBench::run() {
  bind_this_thread(share_.cpus);
  StepReport report{.preset = options_.preset,
                    .dtype = config_.precision.param,
                    .reduce_dtype = config_.precision.reduce,
                    .isa = cpu_isa(),
                    .ranks = world_.size(),
                    .threads = share_.threads,
                    .ranks_a_gpu = machine_.gpus.ranks_a_gpu,
                    .layers = config_.model.layers,
                    .width = config_.model.width,
                    .micro_batch = config_.train.micro_batch,
                    .micro_batches = micro_batches_a_rank(config_, world_.size()),
                    .sequence = config_.train.sequence,
                    .steps = options_.steps};
  if (host_device_) measure_ceiling(report);  // one device at a time holds a GPU
  {
    const TrainPlan plan = make_plan(config_, machine_.plan_options(world_, config_, share_.threads));
    const NcclOptions nccl = machine_.nccl_options(config_);
    DeviceOptions options = device_options();
    options.memory = host_device_ ? nccl.memory.get() : world_.arena();
    const auto own_baseline = pss_bytes();  // before the device, whose memory may be there at once
    const auto device = plan.create_device(options, machine_.make_device);
    if (host_device_) {
      report.gpu = gpu_of(*device).name;
      report.isa = isa_of(gpu_of(*device));
    }
    Ranks ranks = ranks_beside(*device);
    report.pss_baseline = pss_of(ranks, own_baseline);
    if (!host_device_) measure_ceiling(report);
    run_steps(*device, plan, nccl, report);
  }
  measure_ceiling(report);
  return report;
}

void StepBench::run_steps(Device& device, const TrainPlan& plan, const NcclOptions& nccl, StepReport& report) {
  const std::unique_ptr<World> gpu_world = machine_.connect(world_, device, nccl);
  World& world = gpu_world ? *gpu_world : world_;
  report.transport = world.transport();
  Session session(device, world, config_);
  plan.apply_order(session.runtime());
  report.parameters = session.model().parameter_count();
  report.flops_per_token =
      flops_per_token(session.model().working_parameter_count(), report.layers, report.width, report.sequence);
  time_steps(session, report);
  report.profile = profile_steps(session);
  Ranks ranks = ranks_beside(device);
  report.pss = pss_of(ranks, pss_bytes());
  report.planned_peak_bytes = static_cast<std::int64_t>(ranks.max(static_cast<double>(plan.step_peak_bytes)));
}

void StepBench::time_steps(Session& session, StepReport& report) {
  for (std::int64_t i = 0; i < options_.warmup; ++i) step(session, report);
  if (const std::string message = session.products().take_message(); world_.rank() == 0 && !message.empty())
    print_to_stderr("bench_step: {}\n", message);
  std::vector<double> durations;
  for (std::int64_t i = 0; i < options_.steps; ++i) durations.push_back(step(session, report));
  report.step_ms = median(durations);
  report.step_ms_min = *std::min_element(durations.begin(), durations.end());
}

StepProfile StepBench::profile_steps(Session& session) {
  Profile& profile = session.device().profile();
  StepReport ignored;
  double window_ms = 0;
  profile.start();
  for (std::int64_t i = 0; i < options_.profile_steps; ++i) window_ms += step(session, ignored);
  profile.stop();
  return summarise(profile, static_cast<int>(options_.profile_steps), window_ms);
}

double StepBench::step(Session& session, StepReport& report) {
  const auto operations = [&] { return world_.watchdog() != nullptr ? world_.watchdog()->page().started.load() : 0; };
  const std::uint64_t operations_before = operations();
  const auto start = Clock::now();
  session.enqueue_step(++step_, kLearningRate, made_up_samples(config_), false);
  const StepResult result = session.finish_step();
  const double duration_ms = ms_since(start);
  report.operations = static_cast<std::int64_t>(operations() - operations_before);
  report.peak_bytes = result.peak_bytes;
  report.loss =
      std::accumulate(result.losses.begin(), result.losses.end(), 0.0) / static_cast<double>(result.losses.size());
  if (!std::isfinite(report.loss))  // every rank sees the same
    throw Error(ExitCode::non_finite, "the loss is not finite", fmt::format("step {}", step_),
                "this is a defect of zshard");
  return duration_ms;
}

}  // namespace zs::bench
