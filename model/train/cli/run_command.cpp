#include <memory>

#include "model/train/cli/commands.h"
#include "model/train/cli/run_options.h"
#include "model/train/config/expand_path.h"
#include "model/train/config/site_defaults.h"
#include "model/train/rank/error_line.h"
#include "model/train/run_dir/resume.h"
#include "runtime/base/parse_integer.h"

namespace zs {
namespace {

/// --explain and --trace as the command line has them.
struct ExplainOptions {
  CLI::Option* explain = nullptr;
  std::string steps, trace;
};

void add_explain_options(CLI::App& app, ExplainOptions& options) {
  options.explain = app.add_option("--explain", options.steps,
                                   "print where the time of N steps (10) went, those after the first, and go on "
                                   "(docs/looking-at-a-run.md)")
                        ->type_name("[N]")
                        ->expected(0, 1);
  app.add_option("--trace", options.trace,
                 "write what each stream did in these steps (3, without --explain) for Perfetto or chrome://tracing")
      ->type_name("FILE.json")
      ->check([](const std::string& text) { return text.empty() ? std::string("needs a file") : std::string(); });
}

/// Request that the options make. Where --explain stands before the configuration's name and without a number, it has
/// taken that name: then it is `config_path`. Error(usage).
ExplainRequest explain_request(const ExplainOptions& options, std::string& config_path) {
  ExplainRequest request{.prints = options.explain->count() > 0, .trace = expand_path(options.trace)};
  if (!request.prints && request.trace.empty()) return request;
  request.steps = request.prints ? ExplainRequest::kDefaultSteps : ExplainRequest::kDefaultTracedSteps;
  // As CLI11 has an option that is given without its value.
  if (options.steps.empty() || options.steps == "true" || options.steps == "{}") return request;
  const auto number = parse_integer<std::int64_t>(options.steps);
  if (number && *number >= 1 && *number <= ExplainRequest::kMostSteps) {
    request.steps = *number;
  } else if (!number && config_path.empty()) {
    config_path = options.steps;
  } else {
    throw Error(ExitCode::usage, fmt::format("--explain {}: not a number of steps", options.steps), "command line",
                fmt::format("give one from 1 to {}, or none", ExplainRequest::kMostSteps));
  }
  return request;
}

/// Description of what ranks must have in common beside the configuration, a line each.
std::string describe(const TrainJob& job) {
  const char* const dry_run = job.full_plan ? "full" : job.dry_run ? "plan" : "no";
  const auto named = [](const std::string& name) { return name.empty() ? "no" : name; };
  return fmt::format("--explain = {}\n--trace = {}\n", job.explain.prints ? std::to_string(job.explain.steps) : "no",
                     named(job.explain.trace)) +
         fmt::format("--resume = {}\n--dry-run = {}\n--overwrite = {}\n--verify-order = {}\n--verify-data = {}\n",
                     named(job.resume), dry_run, job.overwrite ? "yes" : "no", job.verify_order ? "yes" : "no",
                     job.verify_data ? "yes" : "no") +
         fmt::format("replay of step {}\n", job.replay ? std::to_string(job.replay->step) : "no") +
         fmt::format("--plan-explain = {}\n--plan-diff = {}\n--fit = {}\n", named(job.plan_name), named(job.other_path),
                     named(job.fit));
}

Command::Action add_run(CLI::App& app, const Invocation& by) {
  const auto options = std::make_shared<RunOptions>();
  const auto explain = std::make_shared<ExplainOptions>();
  add_config_options(app, *options);
  add_start_options(app, *options);
  add_explain_options(app, *explain);
  return [options, explain, by] {
    return run_on_ranks([&] {
      const ExplainRequest request = explain_request(*explain, options->config_path);
      TrainJob job = train_job(*options, by);
      job.explain = request;
      return train_work(std::move(job));
    });
  };
}

}  // namespace

void add_config_options(CLI::App& app, RunOptions& options) {
  app.add_option("CONFIG.toml", options.config_path, "what to train (keys: the command keys, docs/configuration.md)");
  app.add_option("--set", options.overrides, "key=value: overrides a key of the file; repeatable")
      ->allow_extra_args(false);
}

void add_start_options(CLI::App& app, RunOptions& options) {
  app.add_option("--resume", options.resume,
                 "go on from a checkpoint: latest (of run.dir, or of the last runs/NAME-N that has one), latest-valid "
                 "(passes over damaged ones), auto (latest where there is one, else a new run), or a folder")
      ->check([](const std::string& text) {
        return text.empty() ? std::string("needs latest, latest-valid, auto or a folder") : std::string();
      });
  app.add_flag("--overwrite", options.overwrite,
               "replace the run in a named run.dir; with --resume, its checkpoints after the named one");
  app.add_flag("--verify-order", options.verify_order,
               "check that events order every conflicting access to memory, in the first two steps and the first "
               "validation of every rank (of a plan: in it); exit code 70 if not");
  app.add_flag("--verify-data", options.verify_data,
               "read all data before the first step (of a plan: and stop), each rank its share: every id is within the "
               "vocabulary, or exit code 65 and where not");
}

TrainJob train_job(const RunOptions& options, const Invocation& by) {
  if (options.config_path.empty())
    throw Error(
        ExitCode::usage, "no configuration file", "command line",
        fmt::format("give one: {} {}CONFIG.toml", program_name(), by.name.empty() || by.is_alias ? "" : by.name + " "));
  TrainJob job;
  job.config_path = expand_path(options.config_path);
  job.resume = expand_path(options.resume);
  job.config = load_resumed_config(job.config_path, options.overrides, job.resume);
  if (const std::string note = site_note(job.config); !note.empty() && is_first_started()) print_note(note);
  job.run_dir = run_dir_asked_for(job.config, job.config_path, job.resume);
  job.overwrite = options.overwrite;
  job.verify_order = options.verify_order;
  job.verify_data = options.verify_data;
  job.started = by.started;
  job.program_folder = by.program_folder;
  return job;
}

RankWork train_work(TrainJob job) {
  RankWork work{.config = job.config,
                .config_path = job.config_path,
                .started = describe(job),
                .is_for_one_process = job.dry_run,
                .run = {}};
  work.run = [job = std::move(job)](World& world) { return Trainer(world, job).run(); };
  return work;
}

Command run_command() {
  return {.name = "run",
          .other_name = "train",
          .usage = "CONFIG.toml",
          .summary = "Trains a model with sharded parameters; on several ranks under mpirun -q -np N.",
          .add = add_run};
}

}  // namespace zs
