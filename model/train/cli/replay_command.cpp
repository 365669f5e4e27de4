#include <unistd.h>

#include <filesystem>
#include <limits>
#include <memory>

#include "model/train/cli/commands.h"
#include "model/train/cli/number_option.h"
#include "model/train/cli/run_options.h"
#include "model/train/config/expand_path.h"
#include "model/train/rank/error_line.h"
#include "model/train/run_dir/run_mark.h"
#include "runtime/shard/checkpoint/checkpoint_folder.h"

namespace zs {
namespace {

namespace fs = std::filesystem;

struct ReplayOptions {
  std::string run, out;
  std::int64_t step = 0;
  std::vector<std::string> overrides;
};

/// Keys of the run that say how many ranks it had, only cost time, or write what nobody wants of a replay.
constexpr const char* kLeftOut[] = {"comm.ranks=1",
                                    "comm.transport=auto",
                                    "checkpoint.every=0",
                                    "checkpoint.every_minutes=0",
                                    "checkpoint.keep_best=false",
                                    "run.validate_every=0",
                                    "run.validate_first=false",
                                    "run.evaluate=[]",
                                    "run.sample_tokens=0",
                                    "run.tensorboard=false",
                                    "train.patience=0",
                                    "train.time_limit=0",
                                    "lora.export=\"\"",
                                    "run.export=\"\""};

/// The newest checkpoint before the step; empty: the run's start.
std::string checkpoint_before(const std::string& run, std::int64_t step) {
  const std::string root = run + "/checkpoints";
  std::int64_t best = 0;
  for (const std::int64_t saved : list_checkpoints(root))
    if (saved < step) best = std::max(best, saved);
  return best == 0 ? "" : fmt::format("{}/step-{}", root, best);
}

TrainJob replay_job(const ReplayOptions& options, const Invocation& by) {
  const std::string run = expand_path(options.run);
  if (!RunMark::find(run))
    throw Error(ExitCode::usage, "this is no run's directory", run, fmt::format("name one: {} RUN --step N", by.name));
  const std::string out = expand_path(options.out);
  if (std::error_code failed; !out.empty() && fs::exists(out, failed))
    throw Error(ExitCode::cannot_create, "there is something of that name", out, "give --out a new folder");
  ReplayRequest request{.step = options.step, .recorded = recorded_steps(run)};
  if (request.recorded.empty() || options.step > request.recorded.rbegin()->first)
    throw Error(ExitCode::usage,
                fmt::format("--step {} of a run of {} steps", options.step,
                            request.recorded.empty() ? 0 : request.recorded.rbegin()->first),
                run, "name one that it has made");
  TrainJob job;
  job.config_path = run + "/config.toml";
  job.resume = checkpoint_before(run, options.step);
  const auto load = [&](std::vector<std::string> overrides) {
    overrides.insert(overrides.begin(), std::begin(kLeftOut), std::end(kLeftOut));
    overrides.insert(overrides.end(), options.overrides.begin(), options.overrides.end());
    return load_resumed_config(job.config_path, overrides, job.resume);
  };
  job.config = load({});
  // Groups of ranks that are not there. The bits of a deterministic run do not depend on them.
  if (job.config.shard.group_size > 1 && job.config.shard.strategy != "zero3")
    job.config = load({"shard.strategy=zero3", "shard.group_size=0"});
  if (!job.config.train.deterministic && is_first_started())
    print_note("without train.deterministic the bits are the run's on as many ranks as it had, and by its strategy");
  job.run_dir = out.empty() ? (fs::temp_directory_path() / fmt::format("zshard-replay-{}", getpid())).string() : out;
  job.started = by.started;
  job.program_folder = by.program_folder;
  job.replay = std::move(request);
  return job;
}

/// Removes a folder at its end.
struct Removed {
  std::string folder;  ///< empty: none
  ~Removed() {
    std::error_code failed;  // a folder for temporary files
    if (!folder.empty()) fs::remove_all(folder, failed);
  }
};

Command::Action add_replay(CLI::App& app, const Invocation& by) {
  const auto options = std::make_shared<ReplayOptions>();
  app.add_option("RUN", options->run, "a run's directory")->required()->check(not_empty);
  app.add_option("--step", options->step, "the step to look at")
      ->required()
      ->check(integer_from(1, std::numeric_limits<std::int64_t>::max()));
  app.add_option("--out", options->out, "a new folder for a run of the replayed steps; else nothing is kept")
      ->type_name("FOLDER")
      ->check(not_empty);
  app.add_option("--set", options->overrides, "key=value: overrides a key of the run; repeatable")
      ->allow_extra_args(false);
  return [options, by] {
    return run_on_ranks([&] {
      TrainJob job = replay_job(*options, by);
      const std::string folder = job.run_dir;
      RankWork work = train_work(std::move(job));
      if (options->out.empty())
        work.run = [run = std::move(work.run), folder](World& world) {
          const Removed removed{world.rank() == 0 ? folder : ""};
          return run(world);
        };
      return work;
    });
  };
}

}  // namespace

Command replay_command() {
  return {
      .name = "replay",
      .usage = "RUN --step N",
      .summary = "Repeats steps of a run from its nearest checkpoint, on any number of ranks, and looks into the last.",
      .add = add_replay};
}

}  // namespace zs
