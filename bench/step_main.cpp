// bench_step: how fast one model trains here, compared with what the machine's products allow, and where a step's time goes.

#include "bench/step_command.h"

int main(int argc, char** argv) {
  CLI::App app("Times the training step of a GPT-2 on made-up tokens. Several ranks: mpirun -q -np N build/bench_step ...", "bench_step");
  zs::bench::StepOptions step;
  bool json = false;
  zs::bench::add_step_options(app, step);
  app.add_flag("--json", json, "one line of JSON instead of tables");
  return zs::bench::run_step_program(argc, argv, app, step, [&](zs::World& world, const zs::Config& config) {
    const zs::bench::StepReport report = zs::bench::StepBench(world, step, config).run();
    return json ? to_json(report) : to_text(report);
  });
}
