// bench_step on GPUs that the host plays: what it counts is right, and what it cannot know it says so.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "bench/step/step_bench.h"
#include "tests/bench/emulated_gpu.h"

namespace gpu_step_test {

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

/// After the same number of steps by so many ranks on one thread of the CPU each.
double cpu_loss(const Config& config, int ranks = 1) {
  constexpr float kLearningRate = 1e-4f;  // the benchmark's
  std::vector<double> losses(static_cast<std::size_t>(ranks));
  run_local_world(ranks, {.timeout_s = 120}, [&](World& world) {
    const TrainPlan plan = make_plan(config, plan_options(world, 1));
    const auto device = plan.create_device({});
    Session session(*device, world, config);
    for (std::int64_t step = 1; step <= kSmall.warmup + kSmall.steps; ++step) {
      session.enqueue_step(step, kLearningRate, made_up_samples(config), false);
      const StepResult result = session.finish_step();
      losses[static_cast<std::size_t>(world.rank())] =
          std::accumulate(result.losses.begin(), result.losses.end(), 0.0) / static_cast<double>(result.losses.size());
    }
  });
  return losses[0];
}

/// Whether what the numbers of a report say of each other is so.
void check_consistent(const StepReport& report) {
  CHECK(report.peak_bytes == report.planned_peak_bytes);
  CHECK(report.product_ceiling_gflops > 0);
  CHECK(report.tokens_per_s() == Approx(32 * report.ranks / (report.step_ms * 1e-3)));
  CHECK(report.pct_of_product_ceiling() ==
        Approx(100 * report.tokens_per_s() * report.flops_per_token * 1e-9 / report.product_ceiling_gflops));
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
  const StepReport report = StepBench(*world, options, config, gpu.machine()).run();
  CHECK(report.gpu == "Emulated");
  CHECK(report.isa == "sm_99");
  CHECK(std::abs(report.loss - expected_loss) <= tolerance * expected_loss);
  check_consistent(report);
  CHECK_THAT(to_text(report), Catch::Contains("1 x Emulated (sm_99), 2 x 2 x 8 tokens"));
  CHECK_THAT(to_json(report), Catch::Contains(R"("device":"cuda","gpu":"Emulated","isa":"sm_99")"));
}

TEST_CASE(
    "a step of several GPUs has the CPU's loss and its plan's peak, over NCCL and staged, beside the products of all "
    "of them") {
  constexpr int kRanks = 3;
  const Transport transport = GENERATE(Transport::nccl, Transport::staged);
  const std::string name = transport == Transport::nccl ? "nccl" : "staged";
  Emulated gpus(kRanks);
  StepOptions options = kSmall;
  const double expected_loss = cpu_loss(step_config(options, kRanks), kRanks);
  options.settings.emplace_back("device=cuda");
  const Config config = step_config(options, kRanks);
  std::vector<StepReport> reports(kRanks);
  gpus.run(kRanks, transport, [&](World& world, const Machine& machine) {
    reports[static_cast<std::size_t>(world.rank())] = StepBench(world, options, config, machine).run();
  });
  const StepReport& report = reports[0];
  CHECK((gpus.nccl.registered().collectives > 0) == (transport == Transport::nccl));  // as a training's
  CHECK(gpus.nccl.registered().displaced == 0);
  CHECK(gpus.nccl.registry().mistakes().empty());
  CHECK(report.transport == name);
  CHECK(report.ranks == kRanks);
  for (const StepReport& one : reports) CHECK(std::abs(one.loss - expected_loss) <= kF32Tolerance * expected_loss);
  CHECK(reports[1].product_ceiling_gflops == report.product_ceiling_gflops);  // one number, of all together
  check_consistent(report);
  const auto exchanged = [&](StreamRole stream, const std::string& op) {
    return std::any_of(report.profile.rows.begin(), report.profile.rows.end(),
                       [&](const StepProfile::Row& row) { return row.stream == stream && row.op == op && row.ms > 0; });
  };
  CHECK(exchanged(StreamRole::unshard, "all_gather"));
  CHECK(exchanged(StreamRole::reduce, "reduce_scatter"));
  CHECK_THAT(to_text(report), Catch::Contains("3 x Emulated (sm_99) over " + name));
  CHECK_THAT(to_json(report), Catch::Contains(R"("ranks_a_gpu":1,"transport":")" + name + "\""));
}

TEST_CASE("ranks that share a GPU are not reported as GPUs") {
  const StepReport report{.isa = "sm_99", .gpu = "Emulated", .ranks = 4, .ranks_a_gpu = 2, .step_ms = 1};
  CHECK_THAT(to_text(report), Catch::Contains("4 ranks, up to 2 on one Emulated (sm_99)"));
  CHECK_THAT(to_json(report), Catch::Contains(R"("ranks_a_gpu":2)"));
}

TEST_CASE("where a device takes no times, where its steps went is not known") {
  StepReport report{.step_ms = 1};
  CHECK_THAT(to_text(report), Catch::Contains("is not known"));
  CHECK_THAT(to_json(report), Catch::Contains(R"("profile":null)") && Catch::Contains(R"("device":"cpu","gpu":null)"));
  report.profile = {.steps = 1, .step_ms = 4, .busy_ms = 3, .rows = {{StreamRole::compute, "adamw", false, 1, 3}}};
  CHECK_THAT(to_text(report), Catch::Contains("nothing to do") && !Catch::Contains("is not known"));
  CHECK_THAT(to_json(report), Catch::Contains(R"("idle_ms":1.0)"));
}

}  // namespace gpu_step_test
