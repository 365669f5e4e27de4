// bench_collectives: how fast the ranks exchange data, compared with a copy and with the MPI library's own collectives.

#include <map>

#include "bench/collective_bench.h"
#include "bench/rank_program.h"

namespace {

using zs::bench::Collective;

struct CommandLine {
  zs::bench::CollectiveOptions collectives;
  std::string transport = "auto";
  bool json = false;
};

void add_options(CLI::App& app, CommandLine& line) {
  zs::bench::CollectiveOptions& options = line.collectives;
  const std::map<std::string, Collective> ops = {{"all_gather", Collective::all_gather},
                                                 {"reduce_scatter", Collective::reduce_scatter},
                                                 {"all_reduce", Collective::all_reduce},
                                                 {"all_to_all", Collective::all_to_all},
                                                 {"broadcast", Collective::broadcast}};
  const std::map<std::string, zs::DType> dtypes = {{"f32", zs::DType::f32}, {"bf16", zs::DType::bf16}};
  app.add_option("--op", options.ops, "only this; repeatable")->transform(CLI::Transformer(ops))->allow_extra_args(false);
  app.add_option("--dtype", options.dtypes, "only this")->transform(CLI::Transformer(dtypes))->allow_extra_args(false);
  const auto add_bytes = [&app](const char* flag, std::int64_t& bytes, const char* what) {
    app.add_option(flag, bytes, what)->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))->capture_default_str();
  };
  add_bytes("--min-bytes", options.min_bytes, "of a rank's largest buffer; sizes grow by a factor of 4");
  add_bytes("--max-bytes", options.max_bytes, "the largest of them");
  app.add_option("--min-time", options.min_time_s, "seconds for each row")->check(CLI::Range(0.0, 60.0))->capture_default_str();
  app.add_option("--transport", line.transport, "of zshard")->check(CLI::IsMember({"auto", "hier", "shm", "mpi"}))->capture_default_str();
  app.add_flag("--compare", options.compare, "the MPI library's own collectives too, alternated, as transport openmpi");
  app.add_flag("--json", line.json, "one line of JSON instead of a table");
}

std::unique_ptr<zs::World> ranks_of(const CommandLine& line) {
  if (zs::detect_launch() != zs::Launch::mpirun)
    throw zs::Error(zs::ExitCode::usage, "there are no ranks to measure", {}, "start it with mpirun -q -np N");
  return zs::make_process_world({}, line.transport);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times collective operations. mpirun -q -np N build/bench_collectives ...", "bench_collectives");
  CommandLine line;
  add_options(app, line);
  return zs::bench::run_rank_program(argc, argv, app,
                                     {[&] { return ranks_of(line); },
                                      {},
                                      [&](zs::World& world) {
                                        const zs::bench::CollectiveReport report =
                                            zs::bench::CollectiveBench(world, line.collectives).run();
                                        return zs::bench::ProgramOutput{line.json ? to_json(report) : to_text(report),
                                                                        report.wrong() == 0 ? zs::ExitCode::ok : zs::ExitCode::internal};
                                      }});
}
