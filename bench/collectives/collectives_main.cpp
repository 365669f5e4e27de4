// bench_collectives: how fast the ranks exchange data, compared with a copy and with the MPI library's own collectives.

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "bench/collectives/collective_bench.h"
#include "bench/common/rank_program.h"

namespace {

using zs::bench::Collective;

constexpr const char* kName = "bench_collectives";

struct CommandLine {
  zs::bench::CollectiveOptions collectives;
  std::string device = "cpu";
  std::vector<std::string> transports = {"auto"};
  bool share_gpu = false;
  bool json = false;
};

/// `chosen` gets what stands behind each name that is given; another one is refused, with those that there are.
template <class T>
void add_names(CLI::App& app, const char* flag, std::vector<T>& chosen, const std::map<std::string, T>& known,
               const char* what) {
  std::vector<std::string> names;
  for (const auto& [name, unused] : known) names.push_back(name);
  const auto set = [&chosen, known](const std::vector<std::string>& given) {
    chosen.clear();
    for (const std::string& name : given) chosen.push_back(known.at(name));
  };
  app.add_option_function<std::vector<std::string>>(flag, set, what)
      ->check(CLI::IsMember(names))
      ->allow_extra_args(false);
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
  app.add_option("--device", line.device, "whose memory")->check(CLI::IsMember({"cpu", "cuda"}))->capture_default_str();
  app.add_option("--transport", line.transports,
                 "of zshard: hier, shm or mpi, or one of these and mpi, alternated; between GPUs nccl or staged")
      ->check(CLI::IsMember({"auto", "hier", "shm", "mpi", "nccl", "staged"}))
      ->allow_extra_args(false)
      ->capture_default_str();
  app.add_flag("--share-gpu", line.share_gpu, "several ranks may have one GPU (cuda.share_gpu)");
  app.add_flag("--compare", options.compare, "the MPI library's own collectives too, alternated, as transport openmpi");
  app.add_flag("--json", line.json, "one line of JSON instead of a table");
}

bool is_between_gpus(const std::string& transport) { return transport == "nccl" || transport == "staged"; }

bool is_any_between_gpus(const CommandLine& line) {
  return std::any_of(line.transports.begin(), line.transports.end(), is_between_gpus);
}

/// What the ranks have beside messages, which all of them have.
std::string first_of(const CommandLine& line) {
  const auto found = std::find_if(line.transports.begin(), line.transports.end(),
                                  [](const std::string& name) { return name != "mpi"; });
  return found != line.transports.end() ? *found : "mpi";
}

std::unique_ptr<zs::World> ranks_of(const CommandLine& line, std::optional<zs::Error>& problem) {
  if (!zs::detect_launch().is_by_mpi())
    throw zs::Error(zs::ExitCode::usage, "there are no ranks to measure", {}, "start it with mpirun -q -np N");
  return zs::bench::ranks_over(line.device == "cuda" || is_any_between_gpus(line) ? "auto" : first_of(line), problem);
}

void check(const CommandLine& line, const zs::World& world) {
  const zs::bench::CollectiveOptions& options = line.collectives;
  const auto refuse = [](const std::string& what, const char* where, const char* todo) {
    throw zs::Error(zs::ExitCode::usage, what, where, todo);
  };
  if (transport_of(world) == zs::Transport::null)
    refuse("transport null moves nothing", "ZSHARD_TRANSPORT", "use auto, hier, shm or mpi");
  if (options.min_bytes > options.max_bytes)
    refuse(fmt::format("no size is {} bytes or more and {} or fewer", options.min_bytes, options.max_bytes),
           "--min-bytes, --max-bytes", "give the larger one to --max-bytes");
  const std::string first = first_of(line);
  if (const auto messages = std::count(line.transports.begin(), line.transports.end(), "mpi");
      messages > 1 || std::ssize(line.transports) > messages + 1)
    refuse(fmt::format("{} do not go together", fmt::join(line.transports, ", ")), "--transport",
           "give one of auto, hier and shm, and mpi once");
  if (line.device == "cuda") {
    if (std::ssize(line.transports) > 1 || (first != "auto" && !is_between_gpus(first)))
      refuse(fmt::format("{} is no transport between GPUs", fmt::join(line.transports, ", ")), "--transport",
             "use nccl or staged; ZSHARD_TRANSPORT chooses beneath it");
    if (options.compare)
      refuse("the MPI library's own collectives are compared on the CPU", "--compare", "leave out --device cuda");
  } else if (is_any_between_gpus(line) || line.share_gpu) {
    refuse("nothing is sent between GPUs without --device cuda", line.share_gpu ? "--share-gpu" : "--transport",
           "add --device cuda");
  }
}

zs::bench::ProgramOutput measure(zs::World& world, const CommandLine& line) {
  zs::Config config;
  config.device = line.device;
  config.cuda.share_gpu = line.share_gpu;
  if (is_any_between_gpus(line)) config.cuda.transport = first_of(line);
  zs::bench::Machine machine;
  if (const zs::ExitCode code = take_gpus(world, config, kName, machine); code != zs::ExitCode::ok) return {"", code};
  zs::bench::CollectiveOptions options = line.collectives;
  options.messages = std::ssize(line.transports) > 1;
  const zs::bench::CollectiveReport report = zs::bench::CollectiveBench(world, options, config, machine).run();
  return {line.json ? to_json(report) : to_text(report),
          report.wrong() == 0 ? zs::ExitCode::ok : zs::ExitCode::internal};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times collective operations. mpirun -q -np N build/bench_collectives ...", kName);
  CommandLine line;
  add_options(app, line);
  return zs::bench::run_rank_program(
      argc, argv, app,
      {[&](std::optional<zs::Error>& problem) { return ranks_of(line, problem); },
       [&](const zs::World& world) { check(line, world); }, [&](zs::World& world) { return measure(world, line); }});
}
