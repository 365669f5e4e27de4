// A whole training step on an emulated GPU, whose memory the host cannot touch: what does so all the same ends the test
// with a signal. Or, by tests/gpu/run, on a real one.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <vector>

#include "model/train/plan/plan.h"
#include "model/train/session/session.h"
#include "runtime/shard/runtime/unshard_scope.h"
#include "runtime/tensor/constant.h"
#include "runtime/tensor/ops.h"
#include "tests/model/temp_dir.h"
#include "tests/shard/mlp_training.h"
#include "tests/shard/residence_run.h"
#include "tests/shard/tiny_training.h"
#include "tests/skip.h"

namespace zs::test::cuda_training_test {
namespace {

struct WideModel : Module {
  WideModel() : Module("") { add_parameter("weight", {700, 1000}, {.normal_std = 0.02f}, true); }
};

std::vector<float> initial_weights(Device& device) {
  const auto world = make_single_world({});
  Context context(device);
  WideModel model;
  ShardedRuntime runtime(context, *world, {});
  shard_module(model, runtime, Units::block);
  std::vector<float> all;
  runtime.executor().read_full(
      0, [&](const Parameter& one, const float* values) { all.assign(values, values + one.numel()); });
  return all;
}

/// Of this process.
std::ptrdiff_t thread_count() { return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}); }

}  // namespace

TEST_CASE(
    "initial weights for a GPU are drawn by all threads that its rank has, and are the same for any number of them") {
  DeviceOptions options = patient();
  options.threads = 4;
  Gpu gpu(1, options);
  const auto host = Device::create(DeviceKind::cpu, patient());
  const std::ptrdiff_t before = thread_count();
  const std::vector<float> drawn = initial_weights(gpu.device);
  CHECK(thread_count() >= before + 3);  // OpenMP keeps its team
  REQUIRE(drawn.size() == 700'000);
  CHECK(drawn == initial_weights(*host));
}

TEST_CASE("a training on a GPU has the CPU's losses and norms") {
  TrainingOptions options;
  options.shard.precision.param = GENERATE(DType::f32, DType::bf16);
  options.micro_batches = GENERATE(1, 3);
  const std::uint64_t seed = GENERATE(1, 2, 3);
  if (is_thinned_out()) return;
  check_training(options, seed);
}

TEST_CASE("every strategy and layout trains on one GPU") {
  TrainingOptions options{.micro_batches = 2};
  options.shard.scheme.strategy =
      GENERATE(Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::shard_grad_op, Strategy::zero3);
  options.shard.layout.layout = GENERATE(Layout::flat, Layout::per_parameter);
  if (is_thinned_out()) return;
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
  if (is_thinned_out()) return;
  check_training(options);
}

TEST_CASE("a step on a GPU allocates nothing once the first is done") {
  Gpu gpu;
  if (gpu.one.emulated() == nullptr) return skip("calls are counted by the emulated driver");
  Training training(gpu.device, {});
  training.steps(2);
  const int before = gpu.one.calls("cuMemAlloc"), modules = gpu.one.calls("cuModuleLoadData");
  training.steps(2);
  CHECK(gpu.one.calls("cuMemAlloc") == before);
  CHECK(gpu.one.calls("cuModuleLoadData") == modules);
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

TEST_CASE("whole parameters of a GPU are written to and written back, or the lost write is told") {
  Gpu gpu;
  TrainingOptions options;
  options.shard.precision.param = DType::bf16;
  Training training(gpu.device, options);
  training.steps(1);
  const bool is_written_back = GENERATE(true, false);
  {
    const UnshardScope scope(training.runtime, {1}, {.writes_back = is_written_back});
    const Buffer weight = scope.value(training.model.blocks[0]->up);
    training.context.launch({"edit", {}, {weight}},
                            [&](ExecContext& exec) { training.context.kernels().zero(exec, weight); });
  }
  if (!is_written_back) {
    CHECK_THROWS_WITH(gpu.device.synchronize(),
                      Catch::Contains("the parameters of unit blocks.0 were written to and not written back"));
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
  CHECK_THROWS_WITH(gpu.device.capture(settle),
                    Catch::Contains("the host waits for stream 'compute' while its work is captured") &&
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
  const ReadSamples read = [&](std::int64_t first) {
    SampleBatch batch = empty_batch(config);
    auto& inputs = batch.inputs;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = static_cast<std::int32_t>((static_cast<std::size_t>(first) * 5 + i * 7) %
                                            static_cast<std::size_t>(config.model.vocab));
      batch.targets[i] = static_cast<std::int32_t>((inputs[i] * 3 + 1) % config.model.vocab);
    }
    return batch;
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
  const bool is_llama = config.model.family == "llama";
  config.train.global_batch = 2;
  config.train.deterministic = GENERATE(false, true);
  config.precision.param = GENERATE(as<std::string>{}, "f32", "bf16");
  const double tolerance = config.precision.param == "f32" ? kF32Tolerance : kBf16Tolerance;
  config.run.validate_every = 1;
  config.run.validate_batches = 1;
  const auto [has_host, updates_on_host] =
      GENERATE(values<std::pair<bool, bool>>({{false, false}, {true, false}, {true, true}}));
  const TempDir disk;
  if (has_host) config.offload.gradients = "host";
  if (has_host)
    config.offload.moments = config.train.deterministic && !updates_on_host ? "disk:" + disk.path() : "host";
  if (has_host) config.offload.weights = "host";
  if (updates_on_host) config.offload.update = "host";
  if (updates_on_host && !config.train.deterministic) {
    config.shard.reduce_every_micro_batch = false;
    config.precision.reduce = config.precision.param;  // in f32 one rank accumulates in the master's gradient
    config.offload.accumulator = "host";
  }
  if (has_host && !updates_on_host && is_llama)
    config = trained_by(config, config.train.deterministic ? "adamw8bit" : "muon");
  const TrainPlan plan = make_plan(config, {.device = DeviceKind::cuda}), host_plan = make_plan(config, {});
  const OneGpu one({.is_guarded = true, .kernels = emulated_kernels()});
  DeviceOptions options = patient();
  options.slab_bytes = plan.reserved_bytes;
  options.upload_bytes = plan.upload_bytes;
  options.pinned_bytes = plan.pinned_bytes;
  CudaDevice gpu(options, one.libraries());
  plan.reserve(gpu);
  const auto host = host_plan.create_device(patient());
  const SessionRun on_gpu = run_session(gpu, config, plan), on_cpu = run_session(*host, config, host_plan);
  check_alike(on_gpu.steps, on_cpu.steps, tolerance);
  CHECK(std::abs(on_gpu.validation_loss - on_cpu.validation_loss) <= tolerance * on_cpu.validation_loss);
  CHECK(std::max_element(on_gpu.logits.begin(), on_gpu.logits.end()) - on_gpu.logits.begin() ==
        std::max_element(on_cpu.logits.begin(), on_cpu.logits.end()) - on_cpu.logits.begin());
  // Updates that were left for a step take part in its peak, if the device makes them: there are none in the first.
  const bool is_update_in_peak = has_host && !updates_on_host;
  CHECK(on_gpu.peak_bytes.front() <= plan.step_peak_bytes);
  if (!is_update_in_peak) CHECK(on_gpu.peak_bytes.front() == plan.step_peak_bytes);
  for (std::size_t i = 1; i < on_gpu.peak_bytes.size(); ++i) CHECK(on_gpu.peak_bytes[i] == plan.step_peak_bytes);
  if (one.emulated() != nullptr) {
    CHECK((one.emulated_cublas()->gelu_products() > 0) ==
          (config.model.family == "gpt2" && config.precision.param == "bf16"));
    CHECK(one.calls("cuMemAlloc") == 1);
  }
  CHECK(plan.upload_bytes > 2 * config.train.global_batch * config.train.sequence * size_of(DType::i32));
  CHECK(host_plan.upload_bytes == 0);
  if (!config.offload.has_disk() && !updates_on_host) CHECK(host_plan.pinned_bytes == host_plan.host_bytes);
  CHECK((host_plan.host_bytes > 0) == has_host);
  if (config.offload.accumulator == "host" && config.precision.param == "bf16")
    CHECK(plan.host_by_kind.at("full_grad") > 0);
  CHECK(plan.pinned_bytes > plan.upload_bytes);
  CHECK(gpu.pinned_memory().counter().reserved_bytes() == plan.pinned_bytes);
  if (one.emulated() != nullptr) CHECK(one.calls("cuMemHostAlloc") == 1);
}

TEST_CASE("a constant is filled in on its device, and nothing is uploaded for it") {
  const auto host = Device::create(DeviceKind::cpu, patient());
  Context on_cpu(*host);
  CHECK(constant(on_cpu, {3}, -1.25f).to_host() == std::vector<float>(3, -1.25f));
  Gpu gpu;
  Context context(gpu.device);
  const int before = gpu.one.calls("cuMemcpyAsync");
  const Tensor filled = constant(context, {2, 2}, -1.25f);
  CHECK(gpu.one.calls("cuMemcpyAsync") == before);
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

}  // namespace zs::test::cuda_training_test
