// bench_step on a GPU that the host plays: what it counts is right, and what it cannot know it says so.
#include <catch2/catch.hpp>

#include <cmath>
#include <numeric>

#include "bench/step_bench.h"
#include "tests/bench/emulated_gpu.h"

using namespace zs;
using namespace zs::bench;
using namespace zs::test;

namespace {

const StepOptions kSmall{.preset = "tiny",
                         .micro_batch = 2,
                         .sequence = 8,
                         .micro_batches = 2,
                         .steps = 2,
                         .warmup = 1,
                         .profile_steps = 1,
                         .settings = {"model.layers=1", "model.heads=2", "model.width=32"}};
constexpr double kF32Tolerance = 1e-4, kBf16Tolerance = 2e-2;

/// After the same number of steps on one thread of the CPU.
double cpu_loss(const Config& config) {
  constexpr float kLearningRate = 1e-4f;  // the benchmark's
  const auto world = make_single_world({});
  const TrainPlan plan = make_plan(config, {});
  const auto device = plan.create_device({});
  Session session(*device, *world, config);
  double loss = 0;
  for (std::int64_t step = 1; step <= kSmall.warmup + kSmall.steps; ++step) {
    session.enqueue_step(step, kLearningRate, made_up_samples(config), false);
    const StepResult result = session.finish_step();
    loss = std::accumulate(result.losses.begin(), result.losses.end(), 0.0) / static_cast<double>(result.losses.size());
  }
  return loss;
}

}  // namespace

TEST_CASE("a step on a GPU has the CPU's loss, its plan's peak, and a product of the same GPU beside it") {
  Emulated gpu;
  StepOptions options = kSmall;
  options.dtype = GENERATE("f32", "bf16");
  const double tolerance = options.dtype == "f32" ? kF32Tolerance : kBf16Tolerance;
  const double expected_loss = cpu_loss(step_config(options, 1));
  options.settings.emplace_back("device=cuda");
  const auto world = make_single_world({});
  const Config config = step_config(options, world->size());
  const StepMachine machine{.make_device = gpu.maker(), .gpu_ceilings = {.sample_ms = 0, .copy_bytes = 1 << 12, .product_size = 32}};
  const StepReport report = StepBench(*world, options, config, machine).run();
  CHECK(report.gpu == "Emulated");
  CHECK(report.isa == "sm_99");
  CHECK(std::abs(report.loss - expected_loss) <= tolerance * expected_loss);
  CHECK(report.peak_bytes == report.planned_peak_bytes);
  CHECK(report.product_ceiling_gflops > 0);
  CHECK(report.tokens_per_s() == Approx(32 / (report.step_ms * 1e-3)));
  CHECK(report.pct_of_product_ceiling() ==
        Approx(100 * report.tokens_per_s() * report.flops_per_token * 1e-9 / report.product_ceiling_gflops));
  CHECK_THAT(to_text(report), Catch::Contains("1 x Emulated (sm_99)"));
  CHECK_THAT(to_json(report), Catch::Contains(R"("device":"cuda","gpu":"Emulated","isa":"sm_99")"));
}

TEST_CASE("where a device takes no times, where its steps went is not known") {
  StepReport report{.step_ms = 1};
  CHECK_THAT(to_text(report), Catch::Contains("is not known"));
  CHECK_THAT(to_json(report), Catch::Contains(R"("profile":null)") && Catch::Contains(R"("device":"cpu","gpu":null)"));
  report.profile = {.steps = 1, .step_ms = 4, .busy_ms = 3, .rows = {{StreamRole::compute, "adamw", false, 1, 3}}};
  CHECK_THAT(to_text(report), Catch::Contains("nothing to do") && !Catch::Contains("is not known"));
  CHECK_THAT(to_json(report), Catch::Contains(R"("idle_ms":1.0)"));
}
