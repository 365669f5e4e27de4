// Steps that are replayed as CUDA graphs, on an emulated GPU whose memory the host cannot touch or, by tests/gpu/run,
// on a real one: the same bits as without, by fewer calls.
#include <catch2/catch.hpp>

#include <functional>

#include "model/train/config/schedule.h"
#include "model/train/plan/plan.h"
#include "model/train/run_dir/weights.h"
#include "model/train/session/session.h"
#include "runtime/device/cuda_device.h"
#include "runtime/device/step_verifier.h"
#include "runtime/shard/checkpoint/checkpoint.h"
#include "tests/gpu/emulation/kernels.h"
#include "tests/gpu/one_gpu.h"
#include "tests/model/temp_dir.h"
#include "tests/shard/tiny_training.h"
#include "tests/skip.h"

namespace zs::test::cuda_graph_test {
namespace {

constexpr int kSteps = 6;

/// Two micro-batches a step, clipped gradients, a learning rate that rises and falls.
Config small_config() {
  Config config = tiny_config();
  config.device = "cuda";
  config.model.layers = 2;
  config.model.width = 16;
  config.model.context = config.train.sequence = 8;
  config.train.global_batch = 2;
  config.train.deterministic = false;
  config.train.steps = kSteps;
  config.train.warmup = 3;
  config.train.lr = 2e-2;
  config.train.clip = 0.5;
  return config;
}

void choose_bf16(Config& config, const std::string& rounding) {
  config.precision.param = config.precision.output = config.precision.validation = "bf16";
  config.precision.rounding = rounding;
}

ReadSamples samples_of(const Config& config) {
  return [&config](std::int64_t first) {
    SampleBatch batch = empty_batch(config);
    auto& inputs = batch.inputs;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = static_cast<std::int32_t>((static_cast<std::size_t>(first) * 5 + i * 7) %
                                            static_cast<std::size_t>(config.model.vocab));
      batch.targets[i] = static_cast<std::int32_t>((inputs[i] * 3 + first) % config.model.vocab);
    }
    return batch;
  };
}

/// One rank's training on an emulated GPU, with memory as planned.
class Run {
 public:
  explicit Run(const Config& config, std::uint64_t seed = 1)
      : config_(config), gpu({.seed = seed, .is_guarded = true, .kernels = emulated_kernels()}) {
    DeviceOptions options;
    options.sync_timeout_s = 60;
    device = plan.create_device(options, [&](DeviceKind, const DeviceOptions& planned) {
      return std::make_unique<CudaDevice>(planned, gpu.libraries());
    });
    session.emplace(*device, *world, config_);
    plan.apply_order(session->runtime());
  }

  /// Up to step `last`, with `between` after each.
  void steps(
      std::int64_t last, const std::function<void(std::int64_t)>& between = [](std::int64_t) {}) {
    while (done < last) {
      enqueue(++done);
      const StepResult result = session->finish_step();
      losses.insert(losses.end(), result.losses.begin(), result.losses.end());
      norms.push_back(result.grad_norm);
      if (is_planned) {
        CHECK(result.peak_bytes == plan.step_peak_bytes);
        CHECK(result.allocations == (norms.size() == 1 ? 2 : 0));  // the GPU's memory, and the host's page-locked
      }
      between(done);
    }
  }
  void enqueue(std::int64_t step) {
    session->enqueue_step(step, static_cast<float>(learning_rate(config_.train, step - 1)), samples_of(config_), false);
  }
  double validate() { return session->validate(samples_of(config_)); }
  std::string weights() { return save_weights(session->runtime().executor()); }
  TrainingState state() { return {*world, session->runtime().executor(), session->optimizer()}; }
  std::int64_t captures() { return session->replay()->captures(); }
  std::int64_t replays() { return session->replay()->replays(); }

 private:
  const Config config_;

 public:
  const TrainPlan plan = make_plan(config_, {.device = DeviceKind::cuda});
  std::unique_ptr<World> world = make_single_world({});
  OneGpu gpu;
  std::unique_ptr<Device> device;
  std::optional<Session> session;
  std::int64_t done = 0;
  bool is_planned = true;  // nothing but steps by the plan takes memory
  std::vector<float> losses, norms;
};

/// What a training of kSteps leaves.
struct Outcome {
  std::vector<float> losses, norms;
  std::string weights;
  bool operator==(const Outcome&) const = default;
};

Outcome outcome_of(
    Run& run, const std::function<void(std::int64_t)>& between = [](std::int64_t) {}) {
  run.steps(kSteps, between);
  return {run.losses, run.norms, run.weights()};
}

/// Without a graph.
Outcome expected_of(
    Config config, const std::function<void(Run&, std::int64_t)>& between = [](Run&, std::int64_t) {}) {
  config.cuda.graph = false;
  Run run(config);
  return outcome_of(run, [&](std::int64_t step) { between(run, step); });
}

void check_same_bits(Config config, std::uint64_t seed = 1) {
  const Outcome expected = expected_of(config);
  config.cuda.graph = true;
  Run run(config, seed);
  CHECK(outcome_of(run) == expected);
  CHECK(run.captures() == 1);
  CHECK(run.replays() == kSteps - 1);
  if (run.gpu.emulated() != nullptr) CHECK(run.gpu.calls("cuMemAlloc") == 1);
}

}  // namespace

TEST_CASE("replayed steps have the bits of steps that are enqueued, in the memory of their plan, on every seed") {
  const auto [family, is_deterministic, micro_batches, seed] = GENERATE(table<std::string, bool, int, int>(
      {{"gpt2", false, 1, 1}, {"gpt2", true, 3, 2}, {"llama", false, 3, 3}, {"llama", true, 1, 4}}));
  if (is_thinned_out()) return;
  Config config = small_config();
  choose_family(config, family);
  config.train.deterministic = is_deterministic;
  config.train.global_batch = micro_batches;
  check_same_bits(config, static_cast<std::uint64_t>(seed));
}

TEST_CASE("replayed steps in bf16, rounded at random, recomputed, by chunks and without clipping have the same bits") {
  Config config = small_config();
  choose_bf16(config, GENERATE(as<std::string>{}, "nearest", "stochastic"));
  config.train.recompute = {GENERATE(as<std::string>{}, "none", "attention", "block")};
  if (is_thinned_out()) return;
  config.train.loss_chunk = config.train.recompute.front() == "none" ? 3 : 0;
  config.train.clip = config.train.recompute.front() == "block" ? 0 : 0.5;
  check_same_bits(config);
}

TEST_CASE("every strategy and layout is replayed with the same bits") {
  Config config = small_config();
  config.train.global_batch = 3;
  const auto [strategy, layout] = GENERATE(table<std::string, std::string>({{"ddp", "per_parameter"},
                                                                            {"zero1", "flat"},
                                                                            {"zero2", "per_parameter"},
                                                                            {"shard_grad_op", "flat"},
                                                                            {"zero3", "per_parameter"},
                                                                            {"zero3", "flat"}}));
  if (is_thinned_out()) return;
  config.shard.strategy = strategy;
  choose_layout(config, layout);
  config.shard.limit = config.shard.layout == "flat" ? 4 : 0;
  check_same_bits(config);
}

TEST_CASE("a replayed step is one launch where a step that is enqueued is one for each kernel") {
  Config config = small_config();
  config.cuda.graph = true;
  Run run(config);
  if (run.gpu.emulated() == nullptr) return skip("calls are counted by the emulated driver");
  std::vector<int> kernels, graphs;
  run.steps(4, [&](std::int64_t) {
    kernels.push_back(run.gpu.calls("cuLaunchKernel"));
    graphs.push_back(run.gpu.calls("cuGraphLaunch"));
  });
  CHECK(kernels[0] > 100);
  CHECK(kernels[1] == 2 * kernels[0]);  // captured
  CHECK(kernels[3] == kernels[1]);
  CHECK(graphs == std::vector<int>{0, 1, 2, 3});
}

TEST_CASE("validations, samples, checkpoints and weights between replayed steps see them, and change nothing") {
  Config config = small_config();
  config.run.validate_every = 1;
  config.run.validate_batches = 1;
  config.run.sample_tokens = 3;
  const TempDir folder;
  std::vector<double> validations, expected_validations;
  std::vector<std::vector<float>> logits, expected_logits;
  std::string saved, expected_saved;
  const auto look = [&](Run& run, auto& losses, auto& samples, std::string& checkpoint, const std::string& name) {
    return [&, name](std::int64_t step) {
      losses.push_back(run.validate());
      samples.push_back(run.session->next_token_logits({1, 2, 3}));
      if (step == 3) checkpoint = save(run.state(), folder.path() + name, {.step = step, .attributes = {}});
    };
  };
  const Outcome expected = [&] {
    Run run(config);
    return outcome_of(run, look(run, expected_validations, expected_logits, expected_saved, "/plain"));
  }();
  config.cuda.graph = true;
  {
    Run run(config);
    CHECK(outcome_of(run, look(run, validations, logits, saved, "/graph")) == expected);
    CHECK(run.replays() == kSteps - 1);
  }
  CHECK(validations == expected_validations);
  CHECK(logits == expected_logits);
  Run resumed(config);
  resumed.done = load(resumed.state(), saved).step;
  resumed.steps(kSteps);
  CHECK(resumed.norms == std::vector<float>(expected.norms.begin() + 3, expected.norms.end()));
  CHECK(resumed.weights() == expected.weights);
  CHECK(resumed.replays() == 2);
}

TEST_CASE("a step that finds other memory is enqueued, and the next one like it captured anew") {
  Config config = small_config();
  const Outcome expected = expected_of(config);
  config.cuda.graph = true;
  Run run(config);
  Memory held;
  const Outcome outcome = outcome_of(run, [&](std::int64_t step) {
    run.is_planned = false;
    if (step == 3) held = run.device->pool().acquire(64, run.device->stream(StreamRole::compute), "held");
    CHECK(run.replays() == std::vector<std::int64_t>{0, 1, 2, 2, 3, 4}.at(static_cast<std::size_t>(step - 1)));
  });
  CHECK(outcome == expected);
  CHECK(run.captures() == 2);
}

TEST_CASE(
    "a step that trains other parameters, or gathers otherwise, is enqueued, and the next one like it captured anew") {
  Config config = small_config();
  const bool freezes = GENERATE(true, false);
  const auto change = [&](Run& run, std::int64_t step) {
    ShardedRuntime& runtime = run.session->runtime();
    run.is_planned = false;
    if (step != 3) return;
    if (freezes) return runtime.executor().units()[1].parameters[0]->set_trainable(false);
    runtime.set_prefetch(ExecOrder::Phase::forward, 0, {});
  };
  const Outcome expected = expected_of(config, change);
  config.cuda.graph = true;
  Run run(config);
  CHECK(outcome_of(run, [&](std::int64_t step) { change(run, step); }) == expected);
  CHECK(run.captures() == 2);
  CHECK(run.replays() == 4);
}

TEST_CASE("nothing is captured while the order is recorded or work is timed, and that is said once") {
  Config config = small_config();
  const Outcome expected = expected_of(config);
  config.cuda.graph = true;
  Run run(config);
  std::optional<StepVerifier> verifier;
  const bool is_timed = GENERATE(false, true);
  is_timed ? run.device->profile().start() : void(verifier.emplace(*run.device));
  std::vector<std::string> messages;
  const Outcome outcome = outcome_of(run, [&](std::int64_t step) {
    messages.push_back(run.session->replay()->take_message(step));
    if (step > 2) return;
    CHECK(run.captures() == 0);
    if (verifier) CHECK_NOTHROW(verifier->check("the step"));
    if (step < 2) return;
    is_timed ? run.device->profile().stop() : verifier->pause();
  });
  CHECK(outcome == expected);
  const std::string why = is_timed ? "its operations are timed" : "its order is recorded";
  CHECK(messages == std::vector<std::string>{"step 1: not captured as a CUDA graph: " + why, "",
                                             "step 3: captured as a CUDA graph, which steps replay from here on", "",
                                             "", ""});
  CHECK(run.captures() == 1);
}

TEST_CASE("work that leaves other memory than it found is never replayed twice") {
  Run run(small_config());
  StepReplay replay(*run.device, *run.world, run.session->runtime().order_check());
  Stream& compute = run.device->stream(StreamRole::compute);
  Memory block = run.device->pool().acquire(64, compute, "held");
  int enqueued = 0;
  for (int i = 0; i < 6; ++i) {
    replay.run(1, [&] {
      ++enqueued;
      if (enqueued % 2 == 0) block = run.device->pool().acquire(128, compute, "held");
    });
    block = {};
    block = run.device->pool().acquire(64, compute, "held");
  }
  CHECK(enqueued == 6);
  CHECK(replay.captures() == 3);
  CHECK(replay.replays() == 3);
}

TEST_CASE("a replayed step is one operation to the watchdog, and it moves when that is done") {
  Config config = small_config();
  config.cuda.graph = true;
  Run run(config);
  if (run.gpu.emulated() == nullptr) return skip("the emulated driver can stand still");
  run.steps(3);
  const std::uint64_t completed = run.device->completed();
  run.gpu.emulated()->stand_still(true);
  run.enqueue(4);
  CHECK_THAT(run.device->activity(), Catch::Contains("compute: ") && Catch::Contains("up to step (graph)"));
  CHECK(run.device->completed() == completed);
  run.gpu.emulated()->stand_still(false);
  run.session->finish_step();
  CHECK(run.device->completed() > completed);
}

}  // namespace zs::test::cuda_graph_test
