// A whole training step on an emulated GPU, whose memory the host cannot touch: what does so all the same ends the test with a signal.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>

#include "model/module.h"
#include "model/train/plan.h"
#include "model/train/session.h"
#include "runtime/device/cuda_device.h"
#include "runtime/device/step_verifier.h"
#include "runtime/shard/checkpoint.h"
#include "runtime/shard/full_parameters.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/constant.h"
#include "runtime/tensor/host_view.h"
#include "runtime/tensor/ops.h"
#include "runtime/tensor/recompute.h"
#include "tests/gpu/emulation/emulated_cublas.h"
#include "tests/gpu/emulation/kernels.h"
#include "tests/model/temp_dir.h"
#include "tests/shard/tiny_training.h"

namespace zs::test {
namespace {

constexpr std::int64_t kWidth = 24, kVocab = 40, kTime = 6, kBatch = 2;
/// After some steps at a high learning rate: other orders of f32 sums, and roundings of bf16 that tip over, have grown by then.
constexpr double kF32Tolerance = 1e-4, kBf16Tolerance = 2e-2;

/// A GPT-2's block without its attention.
struct MlpBlock : Module {
  MlpBlock(std::string path, bool is_recomputed)
      : Module(std::move(path)),
        is_recomputed_(is_recomputed),
        norm_weight(add_parameter("norm.weight", {kWidth}, {.constant = 1}, false)),
        norm_bias(add_parameter("norm.bias", {kWidth}, {}, false)),
        up(add_parameter("up.weight", {4 * kWidth, kWidth}, {.normal_std = 0.2f}, true)),
        up_bias(add_parameter("up.bias", {4 * kWidth}, {}, false)),
        down(add_parameter("down.weight", {kWidth, 4 * kWidth}, {.normal_std = 0.2f}, true)),
        down_bias(add_parameter("down.bias", {kWidth}, {}, false)) {}
  bool is_block() const override { return true; }
  Tensor forward(const Tensor& x) {
    const ForwardScope scope = enter();
    const auto body = [this](const std::vector<Tensor>& in) {
      const Tensor hidden = gelu(linear(layer_norm(input(in[0]), norm_weight, norm_bias), up, &up_bias), GeluKind::tanh);
      return add(in[0], output(linear(hidden, down, &down_bias)));
    };
    return is_recomputed_ ? recompute({x}, TensorFunction(body)) : body({x});
  }

  bool is_recomputed_;
  Parameter &norm_weight, &norm_bias, &up, &up_bias, &down, &down_bias;
};

struct Mlp : Module {
  explicit Mlp(bool is_recomputed)
      : Module(""),
        tokens(add_parameter("tokens.weight", {kVocab, kWidth}, {.normal_std = 0.5f}, true)),
        positions(add_parameter("positions.weight", {kTime, kWidth}, {.normal_std = 0.1f}, true)) {
    for (int i = 0; i < 2; ++i) add_child(*blocks.emplace_back(std::make_unique<MlpBlock>(fmt::format("blocks.{}", i), is_recomputed)));
  }
  Tensor loss(const Tensor& ids, const Tensor& targets, float seed) {
    const ForwardScope scope = enter();
    Tensor x = output(embedding(ids, tokens, &positions));
    for (const auto& block : blocks) x = block->forward(x);
    return lm_head_loss(input(x), tokens, targets, kVocab - 3, {.seed = seed, .chunk = 5});
  }

  Parameter &tokens, &positions;
  std::vector<std::unique_ptr<MlpBlock>> blocks;
};

struct TrainingOptions {
  ShardOptions shard = {};
  int micro_batches = 1;
  bool is_order_free = false, is_recomputed = false;
  float clip = 0.5f;
};

/// One rank's training, on any device.
class Training {
 public:
  struct Step {
    double loss, norm;
  };
  Training(Device& device, const TrainingOptions& options)
      : options_(options), context(device), model(options.is_recomputed), runtime(context, *world, options.shard) {
    shard_module(model, runtime, Units::block);
    optimizer.emplace(runtime.executor(), AdamWConfig{.clip = options.clip, .order_free = options.is_order_free});
  }

  std::vector<Tensor> enqueue_step(std::int64_t number) {
    const float seed = 1.0f / static_cast<float>(options_.micro_batches);
    std::vector<Tensor> losses;
    for (int i = 0; i < options_.micro_batches; ++i) {
      runtime.begin_micro_batch(Mode::train, i + 1 == options_.micro_batches);
      losses.push_back(model.loss(ids(number * 8 + i), ids(number * 8 + i + 3), seed));
      backward(losses.back(), seed);
      runtime.end_micro_batch();
    }
    optimizer->step(2e-2f, number);
    return losses;
  }
  Step step(std::int64_t number) {
    const std::vector<Tensor> losses = enqueue_step(number);
    context.device().synchronize();
    double loss = 0;
    for (const Tensor& one : losses) loss += static_cast<double>(one.to_host()[0]) / options_.micro_batches;
    return {loss, static_cast<double>(*HostView(context, context.stream(), optimizer->grad_norm()).as<float>())};
  }
  std::vector<Step> steps(int count) {
    std::vector<Step> all;
    for (int i = 0; i < count; ++i) all.push_back(step(++done_));
    return all;
  }
  std::vector<float> weights() {
    std::vector<float> all;
    for (int unit = 0; unit < runtime.scheduler().size(); ++unit) {
      runtime.executor().read_full(
          unit, [&](const Parameter& parameter, const float* values) { all.insert(all.end(), values, values + parameter.numel()); });
    }
    return all;
  }
  std::string save_to(const std::string& folder) {
    return save({*world, runtime.executor(), *optimizer}, folder, {.step = done_, .attributes = {}});
  }
  void load_from(const std::string& folder) { done_ = load({*world, runtime.executor(), *optimizer}, folder).step; }

 private:
  Tensor ids(std::int64_t sample) {
    std::vector<std::int32_t> values(kBatch * kTime);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<std::int32_t>((i * 7 + static_cast<std::size_t>(sample) * 5) % (kVocab - 3));
    return Tensor::from_host(context, {kBatch, kTime}, std::move(values));
  }

  TrainingOptions options_;
  std::int64_t done_ = 0;

 public:
  std::unique_ptr<World> world = make_single_world({});
  Context context;
  Mlp model;
  ShardedRuntime runtime;
  std::optional<AdamW> optimizer;
};

DeviceOptions patient() {
  DeviceOptions options;
  options.sync_timeout_s = 60;
  return options;
}

struct Gpu {
  explicit Gpu(std::uint64_t seed = 1) : driver({.seed = seed, .is_guarded = true, .kernels = emulated_kernels()}) {}
  EmulatedDriver driver;
  EmulatedCublas cublas{driver};
  CudaDevice device{patient(), {driver.table(), cublas.table()}};
};

void check_alike(const std::vector<Training::Step>& gpu, const std::vector<Training::Step>& cpu, double tolerance) {
  REQUIRE(gpu.size() == cpu.size());
  for (std::size_t i = 0; i < gpu.size(); ++i) {
    INFO("step " << i + 1);
    CHECK(std::abs(gpu[i].loss - cpu[i].loss) <= tolerance * cpu[i].loss);
    CHECK(std::abs(gpu[i].norm - cpu[i].norm) <= 10 * tolerance * cpu[i].norm);
  }
}

void check_training(const TrainingOptions& options, std::uint64_t seed = 1) {
  constexpr int kSteps = 5;
  const double tolerance = options.shard.precision.param == DType::f32 ? kF32Tolerance : kBf16Tolerance;
  const auto host = Device::create(DeviceKind::cpu, patient());
  Training on_cpu(*host, options);
  Gpu gpu(seed);
  StepVerifier verifier(gpu.device);
  Training on_gpu(gpu.device, options);
  CHECK(on_gpu.weights() == on_cpu.weights());
  const auto expected = on_cpu.steps(kSteps);
  CHECK(expected.front().loss > 1.05 * expected.back().loss);  // it learns
  if (options.clip > 0) CHECK(expected.front().norm > static_cast<double>(options.clip));
  check_alike(on_gpu.steps(kSteps), expected, tolerance);
  CHECK_NOTHROW(verifier.check("the training"));
}

}  // namespace

TEST_CASE("a training on a GPU has the CPU's losses and norms") {
  TrainingOptions options;
  options.shard.precision.param = GENERATE(DType::f32, DType::bf16);
  options.micro_batches = GENERATE(1, 3);
  check_training(options, GENERATE(1, 2, 3));
}

TEST_CASE("every strategy and layout trains on one GPU") {
  TrainingOptions options{.micro_batches = 2};
  options.shard.scheme.strategy = GENERATE(Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::grad_op, Strategy::zero3);
  options.shard.layout.layout = GENERATE(Layout::flat, Layout::per_parameter);
  check_training(options);
}

TEST_CASE("gradients that are reduced in bf16 train on one GPU") {
  TrainingOptions options{.micro_batches = GENERATE(1, 2)};
  options.shard.precision = {.param = DType::bf16, .reduce = DType::bf16, .output = DType::f32};
  check_training(options);
}

TEST_CASE("norms in any order, no clipping, and recomputed activations on a GPU") {
  TrainingOptions options{.micro_batches = 2};
  options.is_order_free = GENERATE(false, true);
  options.is_recomputed = GENERATE(false, true);
  options.clip = GENERATE(0.0f, 0.5f);
  check_training(options);
}

TEST_CASE("a step on a GPU allocates nothing once the first is done") {
  Gpu gpu;
  Training training(gpu.device, {});
  training.steps(2);
  const int before = gpu.driver.calls("cuMemAlloc"), modules = gpu.driver.calls("cuModuleLoadData");
  training.steps(2);
  CHECK(gpu.driver.calls("cuMemAlloc") == before);
  CHECK(gpu.driver.calls("cuModuleLoadData") == modules);
}

TEST_CASE("the meta device counts what a GPU takes") {
  TrainingOptions options{.micro_batches = 2};
  options.shard.precision.param = GENERATE(DType::f32, DType::bf16);
  DeviceOptions stands_for_gpu = patient();
  stands_for_gpu.stands_for = DeviceKind::cuda;
  stands_for_gpu.slab_bytes = Pool::kGrowingSlab;
  const auto meta = Device::create(DeviceKind::meta, stands_for_gpu);
  Gpu gpu;
  const auto peak = [&](Device& device) {
    Training training(device, options);
    training.enqueue_step(1);
    training.enqueue_step(2);
    device.synchronize();
    return device.memory().peak_bytes();
  };
  CHECK(peak(gpu.device) == peak(*meta));
  CHECK(gpu.device.scratch().bytes() == meta->scratch().bytes());
}

TEST_CASE("checkpoints go from a GPU to the CPU and back") {
  const TempDir folder;
  TrainingOptions options;
  options.shard.precision.param = GENERATE(DType::f32, DType::bf16);
  const auto host = Device::create(DeviceKind::cpu, patient());
  const double tolerance = options.shard.precision.param == DType::f32 ? kF32Tolerance : kBf16Tolerance;
  Gpu gpu;
  std::string saved;
  std::vector<float> weights;
  std::vector<Training::Step> rest;
  {
    Training training(gpu.device, options);
    training.steps(2);
    saved = training.save_to(folder.path());
    weights = training.weights();
    rest = training.steps(2);
  }
  Training on_cpu(*host, options);
  on_cpu.load_from(saved);
  CHECK(on_cpu.weights() == weights);
  Training again(gpu.device, options);
  again.load_from(saved);
  CHECK(again.weights() == weights);
  const auto repeated = again.steps(2);
  for (std::size_t i = 0; i < rest.size(); ++i) CHECK(repeated[i].loss == rest[i].loss);
  check_alike(rest, on_cpu.steps(2), tolerance);
}

TEST_CASE("full parameters of a GPU are written to and written back, or the lost write is told") {
  Gpu gpu;
  TrainingOptions options;
  options.shard.precision.param = DType::bf16;
  Training training(gpu.device, options);
  training.steps(1);
  const bool is_written_back = GENERATE(true, false);
  {
    FullParameters full(training.runtime, 1);
    const Buffer weight = training.model.blocks[0]->up.value();
    training.context.launch({"edit", {}, {weight}}, [&](ExecContext& exec) { training.context.kernels().zero(exec, weight); });
    if (is_written_back) full.write_back();
  }
  if (!is_written_back) {
    CHECK_THROWS_WITH(gpu.device.synchronize(), Catch::Contains("the parameters of unit blocks.0 were written to and not written back"));
    return;
  }
  gpu.device.synchronize();
  const std::vector<float> all = training.weights();
  CHECK(std::count(all.begin(), all.end(), 0.0f) >= 4 * kWidth * kWidth);
}

TEST_CASE("what is read back in mid-step cannot be captured, and is named") {
  Gpu gpu;
  TrainingOptions options;
  options.shard.checks_writes = true;
  options.shard.precision.param = DType::bf16;
  Training training(gpu.device, options);
  training.steps(1);
  const auto settle = [&] {
    training.runtime.begin_micro_batch(Mode::eval, true);
    for (int unit = 0; unit < training.runtime.scheduler().size(); ++unit) training.runtime.unshard(unit).wait();
    training.runtime.end_micro_batch();
  };
  settle();
  gpu.device.synchronize();
  CHECK_THROWS_WITH(gpu.device.capture(settle), Catch::Contains("the host waits for stream 'compute' while its work is captured") &&
                                                    Catch::Contains("last enqueued: download:compare_written:"));
}

namespace {

/// What a run of a small model leaves.
struct SessionRun {
  std::vector<Training::Step> steps;
  std::vector<std::int64_t> peak_bytes;
  double validation_loss = 0;
  std::vector<float> logits;
};

SessionRun run_session(Device& device, const Config& config, const TrainPlan& plan) {
  const auto world = make_single_world({});
  Session session(device, *world, config);
  plan.apply_order(session.runtime());
  const ReadSamples read = [&](std::int64_t first, std::vector<std::int32_t>& inputs, std::vector<std::int32_t>& targets) {
    inputs.resize(static_cast<std::size_t>(config.train.micro_batch * config.train.sequence));
    targets.resize(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = static_cast<std::int32_t>((static_cast<std::size_t>(first) * 5 + i * 7) % static_cast<std::size_t>(config.model.vocab));
      targets[i] = static_cast<std::int32_t>((inputs[i] * 3 + 1) % config.model.vocab);
    }
  };
  SessionRun run;
  for (int step = 1; step <= 3; ++step) {
    session.enqueue_step(step, 1e-2f, read, false);
    const StepResult result = session.finish_step();
    double loss = 0;
    for (const float one : result.losses) loss += static_cast<double>(one) / static_cast<double>(result.losses.size());
    run.steps.push_back({loss, static_cast<double>(result.grad_norm)});
    run.peak_bytes.push_back(result.peak_bytes);
  }
  run.validation_loss = session.validate(read);
  run.logits = session.next_token_logits({1, 2, 3});
  return run;
}

}  // namespace

TEST_CASE("a GPT-2 and a Llama train on a GPU as on the CPU, in the memory of their plans") {
  Config config = tiny_config();
  choose_family(config, GENERATE(as<std::string>{}, "gpt2", "llama"));
  config.train.global_batch = 2;
  config.train.deterministic = GENERATE(false, true);
  config.run.validate_every = 1;
  config.run.validate_batches = 1;
  const TrainPlan plan = make_plan(config, {.device = DeviceKind::cuda}), host_plan = make_plan(config, {});
  EmulatedDriver driver({.is_guarded = true, .kernels = emulated_kernels()});
  EmulatedCublas cublas(driver);
  DeviceOptions options = patient();
  options.slab_bytes = plan.reserved_bytes;
  options.upload_bytes = plan.upload_bytes;
  CudaDevice gpu(options, {driver.table(), cublas.table()});
  gpu.scratch().reserve(gpu, plan.scratch_bytes);
  const auto host = host_plan.create_device(patient());
  const SessionRun on_gpu = run_session(gpu, config, plan), on_cpu = run_session(*host, config, host_plan);
  check_alike(on_gpu.steps, on_cpu.steps, kF32Tolerance);
  CHECK(std::abs(on_gpu.validation_loss - on_cpu.validation_loss) <= kF32Tolerance * on_cpu.validation_loss);
  CHECK(std::max_element(on_gpu.logits.begin(), on_gpu.logits.end()) - on_gpu.logits.begin() ==
        std::max_element(on_cpu.logits.begin(), on_cpu.logits.end()) - on_cpu.logits.begin());
  for (const std::int64_t peak : on_gpu.peak_bytes) CHECK(peak == plan.step_peak_bytes);
  CHECK(driver.calls("cuMemAlloc") == 1);
  CHECK(plan.upload_bytes > 2 * config.train.global_batch * config.train.sequence * size_of(DType::i32));
  CHECK(host_plan.upload_bytes == 0);
  CHECK(gpu.locked_bytes() == plan.upload_bytes);
  CHECK(driver.calls("cuMemHostAlloc") == 1);
}

TEST_CASE("a constant is filled in on its device, and nothing is uploaded for it") {
  const auto host = Device::create(DeviceKind::cpu, patient());
  Context on_cpu(*host);
  CHECK(constant(on_cpu, {3}, -1.25f).to_host() == std::vector<float>(3, -1.25f));
  Gpu gpu;
  Context context(gpu.device);
  const int before = gpu.driver.calls("cuMemcpyAsync");
  const Tensor filled = constant(context, {2, 2}, -1.25f);
  CHECK(gpu.driver.calls("cuMemcpyAsync") == before);
  CHECK(filled.to_host() == std::vector<float>(4, -1.25f));
  context.launch({"wrong", {}, {filled.buffer()}}, [&](ExecContext& exec) {
    const Buffer& all = filled.buffer();
    fill_words(exec, {all.data, 2 * all.elems, DType::bf16, all.device}, 0);
  });
  CHECK_THROWS_WITH(gpu.device.synchronize(), Catch::Contains("a word of 4 bytes for elements of bf16"));
}

TEST_CASE("tensors of a GPU come from the host and go back to it") {
  Gpu gpu;
  Context context(gpu.device);
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const std::vector<float> values{1, -2, 0.5f, 3};
  const Tensor tensor = Tensor::from_host(context, {2, 2}, values, dtype);
  CHECK(add(tensor, tensor).to_host() == std::vector<float>{2, -4, 1, 6});
  CHECK(Tensor::zeros(context, {3}, dtype).to_host() == std::vector<float>(3));
}

}  // namespace zs::test
