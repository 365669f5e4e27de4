// The trainer's command line: parses it, finds out how it was launched, and runs a Trainer on every rank.

#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>

#include "comm/gpu/gpu_world.h"
#include "model/job/version.h"
#include "model/train/cli/command_options.h"
#include "model/train/cli/explain_options.h"
#include "model/train/cli/export_command.h"
#include "model/train/cli/inference_command.h"
#include "model/train/cli/plan_command.h"
#include "model/train/cli/report_command.h"
#include "model/train/cli/tokenize_command.h"
#include "model/train/config/config_schema.h"
#include "model/train/config/expand_path.h"
#include "model/train/config/key_use.h"
#include "model/train/rank/error_line.h"
#include "model/train/rank/program.h"
#include "model/train/rank/startup.h"
#include "model/train/rank/stop_signal.h"
#include "model/train/rank/watch.h"
#include "model/train/run_dir/verify.h"
#include "model/train/trainer/trainer.h"
#include "model/weights/weight_files.h"
#include "runtime/base/standard_streams.h"

namespace {

/// Start of this process, before anything else.
const auto program_start = zs::TimeLimit::Clock::now();

using zs::Error;
using zs::ExitCode;

struct CommandLine {
  std::string config_path;
  std::vector<std::string> overrides;
  std::string dry_run;  // empty, "plan" or "full"
  zs::PlanCommand plan;
  bool overwrite = false, verify_order = false, verify_data = false;
  std::string resume;
  zs::InferenceCommand inference;
  zs::ExplainOptions explain;
  zs::ExplainRequest explained;
  std::optional<Error> problem;  // told by one rank, like those of the configuration
};

/// Every line of an error, one a problem.
std::string error_lines(const Error& error, const std::string& place = {}) {
  const auto* config_error = dynamic_cast<const zs::ConfigError*>(&error);
  if (config_error == nullptr) return zs::error_line(error, place);
  std::string lines;
  for (const Error& problem : config_error->problems())
    lines += (lines.empty() ? "" : "\n") + zs::error_line(problem, place);
  return lines;
}

void print_error(const std::string& lines) { zs::print_to_stderr("{}\n", lines); }

/// All that the user wanted to know: 0, or 74 where it is lost.
int print_answer(const std::string& text) {
  zs::write_to_stdout(text);
  if (zs::stdout_failure() == 0) return 0;
  const Error error(ExitCode::io, fmt::format("standard output was lost: {}", zs::system_reason(zs::stdout_failure())),
                    "stdout", "send it where there is room");
  print_error(zs::error_line(error));
  return static_cast<int>(error.code());
}

/// Result of loading: a job, or the error that every rank shall end with.
struct Loaded {
  zs::TrainJob job;
  zs::InferenceCommand inference;
  int code = 0;
  std::string message;
};

void load_config_of(const CommandLine& line, Loaded& loaded) {
  if (line.problem) throw *line.problem;
  loaded.inference = line.inference;
  if (line.inference.is_wanted()) {
    loaded.job.config_path = "command line";
    loaded.job.config = zs::load(loaded.inference, line.overrides);
    return;
  }
  loaded.job.config_path = zs::expand_path(line.config_path);
  loaded.job.resume = zs::expand_path(line.resume);
  loaded.job.config = zs::load_resumed_config(loaded.job.config_path, line.overrides, loaded.job.resume);
  loaded.job.run_dir = zs::run_dir_asked_for(loaded.job.config, loaded.job.config_path, loaded.job.resume);
  if (line.plan.other_config.empty()) return;
  loaded.job.other_path = zs::expand_path(line.plan.other_config);
  loaded.job.other = zs::load_config(loaded.job.other_path, line.overrides);
}

Loaded load(const CommandLine& line, const char* program) {
  Loaded loaded;
  try {
    load_config_of(line, loaded);
  } catch (const Error& error) {
    loaded.code = static_cast<int>(error.code());
    loaded.message = error_lines(error);
  }
  loaded.job.dry_run = !line.dry_run.empty();
  loaded.job.full_plan = line.dry_run == "full";
  loaded.job.ranks = line.plan.ranks;
  loaded.job.plan_name = line.plan.explained;
  loaded.job.fit = line.plan.fit;
  loaded.job.fit_out = line.plan.fit_out;
  loaded.job.overwrite = line.overwrite;
  loaded.job.verify_order = line.verify_order;
  loaded.job.verify_data = line.verify_data;
  loaded.job.explain = line.explained;
  loaded.job.started = program_start;
  loaded.job.program_folder = zs::program_folder(program);
  loaded.inference.evaluate.program_folder = loaded.job.program_folder;
  return loaded;
}

/// The last words of a rank that the others know nothing of, and the end of the job. One rank of a host reports it.
int end_alone(zs::World& world, const std::exception_ptr& problem) {
  const Error error = zs::as_error(problem);
  const zs::RankWatch watch(world);
  // The rank that has caused a failure is to report it, or its peers' watchdogs, who know more.
  if (zs::is_consequence(problem)) std::this_thread::sleep_for(std::chrono::seconds(1));
  const bool is_told = error.where().starts_with("rank ");
  const bool speaks = watch.watchdog() == nullptr || watch.watchdog()->try_claim_report(error.what_happened());
  watch.dump(error.what());  // before the line, which is the last
  if (speaks) print_error(error_lines(error, world.size() > 1 && !is_told ? fmt::format("rank {}", world.rank()) : ""));
  std::fflush(nullptr);
  if (world.size() > 1) world.abort(static_cast<int>(error.code()));
  return static_cast<int>(error.code());
}

/// Description of what ranks must have in common beside the configuration, a line each.
std::string how_started(const Loaded& loaded) {
  const zs::TrainJob& job = loaded.job;
  const auto variable = [](const char* name) {
    const char* const text = std::getenv(name);
    return fmt::format("{} = {}\n", name, text == nullptr ? "unset" : text);
  };
  const char* const dry_run = job.full_plan ? "full" : job.dry_run ? "plan" : "no";
  const auto named = [](const std::string& name) { return name.empty() ? "no" : name; };
  return zs::describe(loaded.inference) + zs::describe(job.explain) +
         fmt::format("--resume = {}\n--dry-run = {}\n--overwrite = {}\n--verify-order = {}\n--verify-data = {}\n",
                     named(job.resume), dry_run, job.overwrite ? "yes" : "no", job.verify_order ? "yes" : "no",
                     job.verify_data ? "yes" : "no") +
         fmt::format("--plan-explain = {}\n--plan-diff = {}\n--fit = {}\n", named(job.plan_name), named(job.other_path),
                     named(job.fit)) +
         variable("ZSHARD_TRANSPORT") + variable("ZSHARD_HOSTS_OF");
}

/// The rank's part of what is asked for.
int run_rank(zs::World& world, const Loaded& loaded) {
  if (loaded.inference.is_wanted()) return zs::run(world, loaded.job.config, loaded.inference);
  return zs::Trainer(world, loaded.job).run();
}

/// One rank that owns its process.
int run_process(zs::World& world, const Loaded& loaded) {
  const zs::RankWatch watch(world);
  watch.enter(zs::Phase::init);  // a refusal ends within this limit, too
  try {
    watch.hit("agree");
    const zs::World::Agreement agreement = world.agree(loaded.code, loaded.message);
    if (agreement.code != 0) {
      if (world.rank() == agreement.rank) print_error(agreement.message);
      return agreement.code;
    }
    if (const int code = zs::agree_at_start(world, loaded.job.config, how_started(loaded)); code != 0) return code;
    return run_rank(world, loaded);
  } catch (...) {
    return end_alone(world, std::current_exception());
  }
}

/// Several ranks as threads of this process.
int run_threads(const Loaded& loaded, const zs::WorldOptions& options) {
  const int ranks = static_cast<int>(loaded.job.config.comm.ranks);
  std::mutex mutex;
  int code = 0;
  zs::run_local_world(ranks, options, [&](zs::World& world) {
    const int own = run_rank(world, loaded);
    const std::lock_guard lock(mutex);
    code = std::max(code, own);
  });
  return code;
}

/// Ranks come from mpirun or from the configuration, not from both.
void check_ranks_source(Loaded& loaded, zs::Launch kind) {
  const auto& comm = loaded.job.config.comm;
  if (loaded.code != 0 || kind != zs::Launch::mpirun || (comm.transport != "local" && comm.ranks == 1)) return;
  const Error error(ExitCode::config,
                    "comm.transport = \"local\" and comm.ranks start ranks of their own, and mpirun has started some",
                    loaded.job.config_path, "leave out mpirun, or leave those keys at their defaults");
  loaded.code = static_cast<int>(error.code());
  loaded.message = error_lines(error);
}

/// The transport that this one of mpirun's ranks wants; when there is something wrong anyhow, any to say so over.
std::string transport_for(Loaded& loaded) {
  try {
    if (loaded.code == 0) return zs::chosen_transport(loaded.job.config.comm.transport);
  } catch (const Error& error) {
    loaded.code = static_cast<int>(error.code());
    loaded.message = error_lines(error);
  }
  return "";
}

int launch(const CommandLine& line, const char* program) {
  const zs::Launch kind = zs::detect_launch();
  Loaded loaded = load(line, program);
  check_ranks_source(loaded, kind);
  const zs::Config& config = loaded.job.config;
  const zs::WorldOptions options{.timeout_s = config.comm.timeout_s,
                                 .sums_in_rank_order = config.train.deterministic,
                                 .race_check_delay_ms = config.comm.race_check_ms,
                                 .watch = zs::watch_options(config)};
  if (kind == zs::Launch::mpirun) {
    const auto world = zs::make_process_world(options, transport_for(loaded));
    return run_process(*world, loaded);
  }
  if (loaded.code == 0 && config.comm.ranks > 1 && line.dry_run.empty()) return run_threads(loaded, options);
  auto world = zs::make_single_world(options);
  if (loaded.code == 0 && config.comm.transport == "null") world = zs::make_null_world(std::move(world));
  return run_process(*world, loaded);
}

void take_explained(CommandLine& line) {
  if (line.problem) return;
  try {
    line.explained = zs::explain_request(line.explain, line.config_path);
  } catch (const Error& error) {
    line.problem = error;
  }
  if (line.explained.is_wanted() && !line.dry_run.empty())
    line.problem = Error(ExitCode::usage, "--explain and --trace are of steps, and --dry-run does none", "command line",
                         "leave one of them out");
}

void take_fit(CommandLine& line, zs::TokenizeJob& tokenized) {
  if (line.plan.fit.empty() || !tokenized.tokenizer.empty()) return;
  line.plan.fit_out = zs::expand_path(std::exchange(tokenized.out, {}));
  const char* const other = !line.resume.empty() ? "--resume" : line.verify_order ? "--verify-order" : "";
  if (!line.problem && *other != '\0')
    line.problem = Error(ExitCode::usage, fmt::format("--fit and {} do not go together", other), "command line",
                         "leave one of them out");
}

/// True on the rank that acts where one is enough and mpirun has started several.
bool is_first_started() {
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  return rank == nullptr || std::string_view(rank) == "0";
}

/// Names what of --set has no effect, in a line, or as a problem; --export, which finds out what it is to export, does
/// so itself.
std::optional<Error> check_set(const zs::CommandOptions& command, const std::vector<std::string>& overrides) {
  if (command.name.empty() || command.name == "--export") return std::nullopt;
  try {
    const std::string unread = zs::unread_keys(zs::key_use(command.name), overrides);
    if (!unread.empty() && is_first_started()) zs::print_to_stderr("train: warning: {}\n", unread);
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

/// The names on the command line are of files: no configuration is read.
void take_files(CommandLine& line, zs::TokenizeJob& tokenized) {
  std::vector<std::string>& files = line.inference.evaluate.files;
  if (!line.config_path.empty()) files.push_back(std::exchange(line.config_path, {}));
  files.insert(files.end(), tokenized.inputs.begin(), tokenized.inputs.end());
  tokenized.inputs.clear();
}

void add_run_options(CLI::App& app, CommandLine& line) {
  app.add_option("CONFIG.toml", line.config_path, "what to train (keys: --help-config, docs/configuration.md)");
  app.add_option("--set", line.overrides, "key=value: overrides a key of the file; repeatable")
      ->allow_extra_args(false);
  app.add_flag("--dry-run{plan}", line.dry_run,
               "print the plan and stop: nothing is allocated or created (ranks: as launched, or comm.ranks); "
               "--dry-run=full lists every "
               "buffer")
      ->check(CLI::IsMember({"plan", "full"}));
  zs::add_plan_options(app, line.plan);
  app.add_option("--resume", line.resume,
                 "go on from a checkpoint: latest (of run.dir, or of the last runs/NAME-N that has one), latest-valid "
                 "(passes over damaged "
                 "ones), auto (latest where there is one, else a new run), or a folder")
      ->check([](const std::string& text) {
        return text.empty() ? std::string("needs latest, latest-valid, auto or a folder") : std::string();
      });
  app.add_flag("--overwrite", line.overwrite,
               "replace the run in a named run.dir; with --resume, its checkpoints after the named one");
  app.add_flag("--verify-order", line.verify_order,
               "check that events order every conflicting access to memory, in the first two steps and the first "
               "validation of every rank "
               "(with --dry-run: in the plan); exit code 70 if not");
  app.add_flag("--verify-data", line.verify_data,
               "read all data before the first step (with --dry-run: and stop), each rank its share: every id is "
               "within the vocabulary, or exit "
               "code 65 and where not");
}

/// Moves arguments to the command that takes them, and refuses what does not go together.
void settle(const CLI::App& app, CommandLine& line, zs::TokenizeJob& tokenized) {
  if (!line.problem) line.problem = line.plan.misplaced(line.dry_run);
  take_explained(line);
  take_fit(line, tokenized);
  if (line.inference.is_wanted()) take_files(line, tokenized);
  const zs::CommandOptions& command = zs::command_given(app);
  if (!line.problem) line.problem = zs::misplaced(line.inference);
  if (!line.problem) line.problem = zs::misplaced(app, command);
  if (!line.problem) line.problem = zs::misplaced(tokenized);
  if (!line.problem) line.problem = check_set(command, line.overrides);
}

int parse_and_run(int argc, char** argv) {
  CLI::App app("Trains a GPT with sharded parameters. Several ranks: mpirun -q -np N build/train CONFIG.toml", "train");
  CommandLine line;
  bool wants_keys = false;
  std::string verified, verified_weights;
  zs::TokenizeJob tokenized;
  zs::ShowDocument shown;
  zs::ExportJob exported;
  zs::ReportJob report;
  add_run_options(app, line);
  zs::add_explain_options(app, line.explain);
  app.add_option("--verify", verified, "read every byte of a checkpoint, or of all of a run, and stop");
  app.add_option("--verify-weights", verified_weights,
                 "check a file of weights in safetensors, an index, or the folder of a model, list what is in it, and "
                 "stop; no configuration is needed");
  zs::add_export_options(app, exported);
  zs::add_report_options(app, report);
  zs::add_tokenize_options(app, tokenized);
  zs::add_show_options(app, shown);
  zs::add_inference_options(app, line.inference);
  app.add_flag("--help-config", wants_keys, "list every key of the configuration");
  app.set_version_flag("--version", [] { return zs::describe_build(); });
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    std::ostringstream text;
    const int code = app.exit(success, text, text);
    return code == 0 ? print_answer(text.str()) : code;
  } catch (const CLI::ParseError& error) {
    line.problem = Error(ExitCode::usage, error.what(), "command line", "see train --help");
  }
  if (wants_keys) return print_answer(zs::config_help());
  if (!report.of.empty()) report.out = std::exchange(tokenized.out, {});
  settle(app, line, tokenized);
  for (const std::string* alone : {&report.of, &tokenized.tokenizer, &exported.to, &verified, &verified_weights})
    if (!alone->empty()) zs::release_stop_signals();
  if (!line.problem && !report.of.empty()) return is_first_started() ? print_answer(zs::write_report(report)) : 0;
  if (!line.problem && !tokenized.tokenizer.empty()) return zs::tokenize(tokenized, line.config_path);
  exported.overrides = line.overrides;
  if (!line.problem && !exported.to.empty())
    return is_first_started()
               ? print_answer(zs::export_from(exported, line.resume.empty() ? line.config_path : line.resume))
               : 0;
  if (!line.problem && !verified.empty()) {
    const int code = zs::verify_checkpoints(zs::expand_path(verified));
    return code == 0 ? print_answer("") : code;
  }
  if (!line.problem && !verified_weights.empty())
    return print_answer(zs::describe_weights(zs::expand_path(verified_weights)));
  if (!line.problem && line.config_path.empty() && !line.inference.is_wanted())
    line.problem = Error(ExitCode::usage, "no configuration file", "command line", "give one: train CONFIG.toml");
  if (!line.problem && shown.is_wanted())
    return is_first_started() ? print_answer(zs::show_document(shown, line.config_path, line.overrides, argv[0])) : 0;
  return launch(line, argv[0]);
}

}  // namespace

int main(int argc, char** argv) {
  zs::hold_stop_signals();
  zs::keep_standard_descriptors();
  zs::set_nccl_environment();
  zs::limit_spinning(argv);
  zs::install_stop_signals();
  try {
    return parse_and_run(argc, argv);
  } catch (...) {
    const Error error = zs::as_error(std::current_exception());
    print_error(error_lines(error));
    return static_cast<int>(error.code());
  }
}
