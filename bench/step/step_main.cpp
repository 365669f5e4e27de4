// bench_step: how fast one model trains here, compared with what the machine's products allow, and where a step's time
// goes.

#include "bench/step/step_command.h"
#include "bench/step/traffic_table.h"
#include "bench/step/watch_cost.h"
#include "model/train/rank/startup.h"

int main(int argc, char** argv) {
  CLI::App app(
      "Times the training step of a GPT-2 or a Llama on made-up tokens. Several ranks: mpirun -q -np N "
      "build/bench_step ...",
      "bench_step");
  zs::bench::StepOptions step;
  bool json = false;
  zs::bench::add_step_options(app, step);
  bool traffic = false;
  zs::bench::TrafficOptions job;
  CLI::Option* const wants_traffic =
      app.add_flag("--traffic", traffic, "runs nothing: what each sharding strategy would send and hold");
  zs::bench::add_count_option(app, "--traffic-ranks", job.ranks, "with --traffic: ranks of the job");
  zs::bench::add_count_option(app, "--traffic-group", job.group, "with --traffic: ranks of a small group");
  bool watch = false;
  app.add_flag("--watch", watch, "what being watched costs: records, fingerprint, watchdog")->excludes(wants_traffic);
  for (const char* flag : {"--traffic-ranks", "--traffic-group"}) app.get_option(flag)->needs(wants_traffic);
  app.add_flag("--json", json, "one line of JSON instead of tables");
  return zs::bench::run_step_program(
      argc, argv, app, step, [&](zs::World& world, const zs::Config& config, const zs::bench::Machine& machine) {
        if (traffic) return traffic_table(step, job);
        if (watch && device_kind(config) == zs::DeviceKind::cuda)
          throw zs::Error(zs::ExitCode::usage, "what being watched costs is measured on the CPU", "--watch",
                          "leave out --device cuda");
        if (watch) return watch_cost(world, step, config);
        const zs::bench::StepReport report = zs::bench::StepBench(world, step, config, machine).run();
        return json ? to_json(report) : to_text(report);
      });
}
