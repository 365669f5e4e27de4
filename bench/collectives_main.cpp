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

/// `chosen` gets what stands behind each name that is given; another one is refused, with those that there are.
template <class T>
void add_names(CLI::App& app, const char* flag, std::vector<T>& chosen, const std::map<std::string, T>& known, const char* what) {
  std::vector<std::string> names;
  for (const auto& [name, unused] : known) names.push_back(name);
  const auto set = [&chosen, known](const std::vector<std::string>& given) {
    chosen.clear();
    for (const std::string& name : given) chosen.push_back(known.at(name));
  };
  app.add_option_function<std::vector<std::string>>(flag, set, what)->check(CLI::IsMember(names))->allow_extra_args(false);
}

void add_options(CLI::App& app, CommandLine& line) {
  zs::bench::CollectiveOptions& options = line.collectives;
  const std::map<std::string, Collective> ops = {{"all_gather", Collective::all_gather},
                                                 {"reduce_scatter", Collective::reduce_scatter},
                                                 {"all_reduce", Collective::all_reduce},
                                                 {"all_to_all", Collective::all_to_all},
                                                 {"broadcast", Collective::broadcast}};
  const std::map<std::string, zs::DType> dtypes = {{"f32", zs::DType::f32}, {"bf16", zs::DType::bf16}};
  add_names(app, "--op", options.ops, ops, "only this; repeatable");
  add_names(app, "--dtype", options.dtypes, dtypes, "only this; repeatable");
  const auto add_bytes = [&app](const char* flag, std::int64_t& bytes, const char* what) {
    app.add_option(flag, bytes, what)->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))->capture_default_str();
  };
  add_bytes("--min-bytes", options.min_bytes, "of a rank's largest buffer; sizes grow by a factor of 4");
  add_bytes("--max-bytes", options.max_bytes, "the largest of them");
  zs::bench::add_min_time_option(app, options.min_time_s, "seconds for each row");
  app.add_option("--transport", line.transport, "of zshard")->check(CLI::IsMember({"auto", "hier", "shm", "mpi"}))->capture_default_str();
  app.add_flag("--compare", options.compare, "the MPI library's own collectives too, alternated, as transport openmpi");
  app.add_flag("--json", line.json, "one line of JSON instead of a table");
}

std::unique_ptr<zs::World> ranks_of(const CommandLine& line, std::optional<zs::Error>& problem) {
  if (zs::detect_launch() != zs::Launch::mpirun)
    throw zs::Error(zs::ExitCode::usage, "there are no ranks to measure", {}, "start it with mpirun -q -np N");
  return zs::bench::ranks_over(line.transport, problem);
}

void check(const zs::bench::CollectiveOptions& options) {
  if (options.min_bytes > options.max_bytes)
    throw zs::Error(zs::ExitCode::usage, fmt::format("no size is {} bytes or more and {} or fewer", options.min_bytes, options.max_bytes),
                    "--min-bytes, --max-bytes", "give the larger one to --max-bytes");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times collective operations. mpirun -q -np N build/bench_collectives ...", "bench_collectives");
  CommandLine line;
  add_options(app, line);
  return zs::bench::run_rank_program(
      argc, argv, app,
      {[&](std::optional<zs::Error>& problem) { return ranks_of(line, problem); }, [&](const zs::World&) { check(line.collectives); },
       [&](zs::World& world) {
         const zs::bench::CollectiveReport report = zs::bench::CollectiveBench(world, line.collectives).run();
         return zs::bench::ProgramOutput{line.json ? to_json(report) : to_text(report),
                                         report.wrong() == 0 ? zs::ExitCode::ok : zs::ExitCode::internal};
       }});
}
