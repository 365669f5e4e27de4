// bench_overlap: how much of a training step's communication hides behind its compute, and how much could.

#include "bench/overlap_bench.h"
#include "bench/step_command.h"
#include "model/train/startup.h"

namespace {

using namespace zs::bench;

constexpr std::int64_t kMostPrefetch = 3, kHighestLimit = 4;

std::string sweep(zs::World& world, const StepOptions& options, zs::Config config, bool json) {
  std::string text = json ? "" : sweep_header();
  for (std::int64_t prefetch = 0; prefetch <= kMostPrefetch; ++prefetch) {
    for (std::int64_t limit = 1; limit <= kHighestLimit; ++limit) {
      config.shard.prefetch = prefetch;
      config.shard.limit = limit;
      const OverlapReport report = OverlapBench(world, options, config).run();
      text += json ? to_json(report) + "\n" : sweep_row(report);
    }
  }
  text.pop_back();
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures how much communication hides behind compute: mpirun -q -np N build/bench_overlap ...", "bench_overlap");
  StepOptions step;
  bool json = false, is_sweep = false;
  add_step_options(app, step);
  app.add_flag("--sweep", is_sweep, "a table over prefetch 0..3 and limits of 1..4 units");
  app.add_flag("--json", json, "one line of JSON a configuration instead of tables");
  return run_step_program(argc, argv, app, step, [&](zs::World& world, const zs::Config& config) {
    if (device_kind(config) == zs::DeviceKind::cuda)
      throw zs::Error(zs::ExitCode::config,
                      "what hides behind compute is meaningful on several GPUs only, and in this version benchmarks measure one",
                      "--device cuda", "measure it on the CPU, or the step with bench_step --device cuda");
    if (is_sweep) return sweep(world, step, config, json);
    const OverlapReport report = OverlapBench(world, step, config).run();
    return json ? to_json(report) : to_text(report);
  });
}
