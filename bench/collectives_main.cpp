// bench_collectives: how fast the ranks exchange data, compared with a copy and with the MPI library's own collectives.

#include <CLI/CLI.hpp>

#include <cstdio>
#include <optional>

#include "bench/collective_bench.h"
#include "model/train/error_line.h"
#include "model/train/program.h"
#include "model/version.h"

namespace {

using zs::Error;
using zs::ExitCode;
using zs::bench::Collective;

struct CommandLine {
  zs::bench::CollectiveOptions collectives;
  std::string transport = "auto";
  bool json = false;
  std::optional<Error> problem;  // told by one rank
};

std::string line_of(const Error& error, const zs::World* world = nullptr) {
  return zs::error_line(error, world != nullptr && world->size() > 1 ? fmt::format("rank {}", world->rank()) : "", "bench_collectives");
}

int run(zs::World& world, const CommandLine& line) {
  try {
    const zs::World::Agreement agreement =
        world.agree(line.problem ? static_cast<int>(line.problem->code()) : 0, line.problem ? line_of(*line.problem) : "");
    if (agreement.code != 0) {
      if (world.rank() == agreement.rank) fmt::print(stderr, "{}\n", agreement.message);
      return agreement.code;
    }
    const zs::bench::CollectiveReport report = zs::bench::CollectiveBench(world, line.collectives).run();
    if (world.rank() == 0) fmt::print("{}\n", line.json ? to_json(report) : to_text(report));
    std::fflush(stdout);
    return report.wrong() == 0 ? 0 : static_cast<int>(ExitCode::internal);
  } catch (...) {
    const Error error = zs::as_error(std::current_exception());
    fmt::print(stderr, "{}\n", line_of(error, &world));
    std::fflush(nullptr);
    if (world.size() > 1) world.abort(static_cast<int>(error.code()));
    return static_cast<int>(error.code());
  }
}

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
  app.add_option("--transport", line.transport, "of zshard")->check(CLI::IsMember({"auto", "shm", "mpi"}))->capture_default_str();
  app.add_flag("--compare", options.compare, "the MPI library's own collectives too, alternated, as transport openmpi");
  app.add_flag("--json", line.json, "one line of JSON instead of a table");
  app.set_version_flag("--version", std::string("zshard ") + zs::version());
}

int parse_and_run(int argc, char** argv) {
  CLI::App app("Times collective operations. mpirun -q -np N build/bench_collectives ...", "bench_collectives");
  CommandLine line;
  add_options(app, line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    line.problem = Error(ExitCode::usage, error.what(), "command line", "see bench_collectives --help");
  }
  if (zs::detect_launch() != zs::Launch::mpirun)
    throw Error(ExitCode::usage, "there are no ranks to measure", {}, "start it with mpirun -q -np N");
  const auto world = zs::make_process_world({}, line.problem ? "auto" : line.transport);
  return run(*world, line);
}

}  // namespace

int main(int argc, char** argv) {
  zs::limit_spinning(argv);
  try {
    return parse_and_run(argc, argv);
  } catch (...) {
    const Error error = zs::as_error(std::current_exception());
    fmt::print(stderr, "{}\n", line_of(error));
    return static_cast<int>(error.code());
  }
}
