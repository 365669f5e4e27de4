// bench_overlap on GPUs that the host plays: its times are theirs, and where nothing can hide it says so.
#include <catch2/catch.hpp>

#include <nlohmann/json.hpp>

#include "bench/overlap/overlap_bench.h"
#include "tests/bench/emulated_gpu.h"
#include "tests/message_of.h"

namespace gpu_overlap_test {

using namespace zs;
using namespace zs::bench;
using namespace zs::test;
using Catch::Contains;

namespace {

constexpr double kLongMs = 1e7;  // hours: no host is as slow

const StepOptions kSmall{.preset = "tiny",
                         .micro_batch = 2,
                         .sequence = 8,
                         .micro_batches = 2,
                         .steps = 1,
                         .warmup = 1,
                         .profile_steps = 2,
                         .settings = {"model.layers=2", "model.heads=2", "model.width=32", "device=cuda"}};

/// Of rank 0.
OverlapReport overlap(Emulated& gpus, int ranks, Transport transport) {
  const Config config = step_config(kSmall, ranks);
  OverlapReport first;
  gpus.run(ranks, transport, [&](World& world, const Machine& machine) {
    OverlapReport report = OverlapBench(world, kSmall, config, machine).run();
    if (world.rank() == 0) first = std::move(report);
  });
  return first;
}

/// The emulated kernels, of which the GPU takes hours for those whose name contains `part`.
std::map<std::string, EmulatedKernel> slow_kernels(const std::string& part, Emulated*& gpus) {
  std::map<std::string, EmulatedKernel> kernels = emulated_kernels();
  for (auto& [name, kernel] : kernels) {
    if (name.find(part) == name.npos) continue;
    kernel.run = [&gpus, run = kernel.run](const void* args, const emulation::Launch& launch) {
      run(args, launch);
      gpus->driver.pass_time(kLongMs);
    };
  }
  return kernels;
}

}  // namespace

TEST_CASE("on several GPUs the times of compute and of the step are the GPU's, and so is what is derived from them") {
  Emulated* machine = nullptr;
  Emulated gpus(2, slow_kernels("update", machine));
  machine = &gpus;
  const OverlapReport report = overlap(gpus, 2, Transport::nccl);
  CHECK(report.gpu == "Emulated");
  CHECK(report.transport == "nccl");
  CHECK(gpus.nccl.registered().collectives > 0);
  CHECK(gpus.nccl.registry().mistakes().empty());
  CHECK(report.note.empty());
  const OverlapReport::Phase& optimizer = report.phases.at(2);
  CHECK(optimizer.compute_ms >= kLongMs);
  CHECK(optimizer.step_ms >= kLongMs);
  CHECK(report.step.compute_ms >= optimizer.compute_ms);
  CHECK(report.step.step_ms >= kLongMs);
  CHECK(report.plan.step_ms >= kLongMs);
  CHECK(report.host_compute_ms < kLongMs);
  CHECK(report.host_step_ms < kLongMs);
  double communication_ms = 0;
  for (const auto& phase : report.phases) {
    CHECK(phase.compute_ms > 0);
    communication_ms += phase.communication_ms;
  }
  CHECK(report.step.communication_ms == Approx(communication_ms));
  CHECK(communication_ms > 0);
  CHECK(communication_ms < kLongMs);  // each operation alone: no kernel beside it
  CHECK_THAT(to_text(report), Contains("2 x Emulated over nccl") && Contains("by the GPU's clock"));
  const auto json = nlohmann::json::parse(to_json(report));
  CHECK(json["clock"] == "gpu");
  CHECK(json["is_meaningful"] == true);
  CHECK(json["note"].is_null());
  CHECK(json["host_step_ms"] == report.host_step_ms);
}

TEST_CASE("where nothing can hide between GPUs the report is marked, with the reason") {
  Emulated gpus(2);
  const OverlapReport staged = overlap(gpus, 2, Transport::staged), alone = overlap(gpus, 1, Transport::local);
  CHECK_THAT(staged.note, Contains("staged through the hosts"));
  CHECK_THAT(alone.note, Contains("meaningful on several GPUs only"));
  for (const OverlapReport& report : {staged, alone}) {
    const auto json = nlohmann::json::parse(to_json(report));
    CHECK(json["is_meaningful"] == false);
    CHECK(json["note"] == report.note);
    CHECK(json["compute_ms"] > 0);
  }
  CHECK(why_nothing_hides(2, {.transport = Transport::nccl}).empty());
  CHECK_THAT(why_nothing_hides(4, {.transport = Transport::nccl, .ranks_a_gpu = 2}),
             Contains("up to 2 ranks share a GPU"));
  CHECK_THAT(why_nothing_hides(2, {.transport = Transport::null}), Contains("nothing is exchanged"));
}

TEST_CASE("steps whose operations are hidden, or computed in two ways, are refused") {
  Emulated gpus(1);
  StepOptions options = kSmall;
  options.settings.emplace_back(GENERATE("cuda.graph=true", "cuda.tune_products=true"));
  const Config config = step_config(options, 1);
  std::string message;
  gpus.run(1, Transport::local, [&](World& world, const Machine& machine) {
    message = message_of([&] { OverlapBench(world, options, config, machine); });
  });
  CHECK_THAT(message, Contains("cuda.graph hides them, cuda.tune_products may"));
}

TEST_CASE("on the CPU the times are the host's, and it says so") {
  const auto json =
      nlohmann::json::parse(to_json(OverlapReport{.preset = "tiny", .step = {.compute_ms = 2, .step_ms = 3}}));
  CHECK(json["clock"] == "host");
  CHECK(json["gpu"].is_null());
  CHECK_THAT(to_text(OverlapReport{.preset = "tiny"}), !Contains("clock"));
}

}  // namespace gpu_overlap_test
