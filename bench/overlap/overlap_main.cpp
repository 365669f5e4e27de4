// bench_overlap: how much of a training step's communication hides behind its compute, and how much could.

#include "bench/overlap/overlap_bench.h"
#include "bench/step/step_command.h"
#include "model/train/rank/startup.h"
#include "runtime/base/standard_streams.h"

namespace zs::bench {
namespace {

constexpr std::int64_t kMostPrefetch = 3, kHighestLimit = 4;

std::string sweep(World& world, const StepOptions& options, Config config, const Machine& machine, bool json) {
  std::string text = json ? "" : sweep_header();
  for (std::int64_t prefetch = 0; prefetch <= kMostPrefetch; ++prefetch) {
    for (std::int64_t limit = 1; limit <= kHighestLimit; ++limit) {
      config.shard.prefetch = prefetch;
      config.shard.limit = limit;
      const OverlapReport report = OverlapBench(world, options, config, machine).run();
      text += json ? to_json(report) + "\n" : sweep_row(report);
    }
  }
  text.pop_back();
  return text;
}

void tell_where_nothing_hides(const World& world, const Config& config, const Machine& machine) {
  if (device_kind(config) != DeviceKind::cuda || world.rank() != 0) return;
  const std::string note = why_nothing_hides(world.size(), machine.gpus);
  if (!note.empty()) zs::print_to_stderr("bench_overlap: note: {}\n", note);
}

}  // namespace
}  // namespace zs::bench

int main(int argc, char** argv) {
  CLI::App app("Measures how much communication hides behind compute: mpirun -q -np N build/bench_overlap ...",
               "bench_overlap");
  zs::bench::StepOptions step{.micro_batch = 1, .steps = 3, .warmup = 1, .profile_steps = 1};  // under a minute
  bool json = false, is_sweep = false;
  zs::bench::add_step_options(app, step);
  app.add_flag("--sweep", is_sweep, "a table over prefetch 0..3 and limits of 1..4 units");
  app.add_flag("--json", json, "one line of JSON a configuration instead of tables");
  return zs::bench::run_step_program(
      argc, argv, app, step, [&](zs::World& world, const zs::Config& config, const zs::bench::Machine& machine) {
        zs::bench::tell_where_nothing_hides(world, config, machine);
        if (is_sweep) return zs::bench::sweep(world, step, config, machine, json);
        const zs::bench::OverlapReport report = zs::bench::OverlapBench(world, step, config, machine).run();
        return json ? to_json(report) : to_text(report);
      });
}
