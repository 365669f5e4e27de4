// bench_step on a GPU that the host plays: what it counts is right, and what it cannot know it says so.
#include <catch2/catch.hpp>

#include <cmath>

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

StepReport run_on(const char* device, const std::string& dtype, const StepMachine& machine) {
  StepOptions options = kSmall;
  options.dtype = dtype;
  options.settings.push_back(std::string("device=") + device);
  const auto world = make_single_world({});
  const Config config = step_config(options, world->size());
  return StepBench(*world, options, config, machine).run();
}

}  // namespace

TEST_CASE("a step on a GPU has the CPU's loss, its plan's peak, and a product of the same GPU beside it") {
  Emulated gpu;
  const std::string dtype = GENERATE("f32", "bf16");
  const StepMachine machine{.make_device = gpu.maker(), .gpu_ceilings = {.sample_ms = 0, .copy_bytes = 1 << 12, .product_size = 32}};
  const StepReport report = run_on("cuda", dtype, machine), on_cpu = run_on("cpu", dtype, {});
  CHECK(report.gpu == "Emulated");
  CHECK(report.isa == "sm_99");
  CHECK(std::abs(report.loss - on_cpu.loss) <= (dtype == "f32" ? kF32Tolerance : kBf16Tolerance) * on_cpu.loss);
  CHECK(report.parameters == on_cpu.parameters);
  CHECK(report.peak_bytes == report.planned_peak_bytes);
  CHECK(report.product_ceiling_gflops > 0);
  CHECK(report.tokens_per_s() == Approx(32 / (report.step_ms * 1e-3)));
  CHECK(report.pct_of_product_ceiling() ==
        Approx(100 * report.tokens_per_s() * report.flops_per_token * 1e-9 / report.product_ceiling_gflops));
  CHECK_THAT(to_text(report), Catch::Contains("1 x Emulated (sm_99)"));
  CHECK_THAT(to_json(report), Catch::Contains(R"("device":"cuda","gpu":"Emulated","isa":"sm_99")"));
  CHECK(on_cpu.gpu.empty());
  CHECK_THAT(to_json(on_cpu), Catch::Contains(R"("device":"cpu","gpu":null)"));
}

TEST_CASE("where a device takes no times, where its steps went is not known") {
  StepReport report{.step_ms = 1};
  CHECK_THAT(to_text(report), Catch::Contains("is not known"));
  CHECK_THAT(to_json(report), Catch::Contains(R"("profile":null)"));
  report.profile = {.steps = 1, .step_ms = 4, .busy_ms = 3, .rows = {{StreamRole::compute, "adamw", false, 1, 3}}};
  CHECK_THAT(to_text(report), Catch::Contains("nothing to do") && !Catch::Contains("is not known"));
  CHECK_THAT(to_json(report), Catch::Contains(R"("idle_ms":1.0)"));
}
