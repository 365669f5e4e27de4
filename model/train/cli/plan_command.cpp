#include <memory>

#include "model/train/cli/commands.h"
#include "model/train/cli/number_option.h"
#include "model/train/cli/run_options.h"
#include "model/train/config/expand_path.h"
#include "model/train/config/site_defaults.h"
#include "runtime/base/launch.h"

namespace zs {
namespace {

/// Options of `plan` and of `fit`.
struct PlanOptions : RunOptions {
  std::string dry_run = "plan";  ///< or "full"
  bool is_full = false, is_largest = false;
  int ranks = 0;             ///< 0: as launched, or comm.ranks
  std::string explained;     ///< a module or parameter; empty: none
  std::string other_config;  ///< configuration to compare with; empty: none
  std::string fit;           ///< "nearest" or "largest" of what fits; empty: not asked for
  std::string fit_out;       ///< file to write that to; empty: none
};

Error refusal(const std::string& what, const std::string& what_to_do) {
  return {ExitCode::usage, what, "command line", what_to_do};
}

void add_ranks_option(CLI::App& app, PlanOptions& options) {
  app.add_option("--ranks", options.ranks,
                 "so many ranks, planned in this one process; any number, whatever the machine has")
      ->check(integer_from(1, 1 << 20));
}

TrainJob planned_job(const PlanOptions& options, const Invocation& by) {
  if (const Launch launch = read_launch(); options.ranks > 0 && launch.has_several_ranks())
    throw refusal(fmt::format("--ranks plans in one process, and {} has started several", launch.launcher),
                  "leave out " + launch.launcher);
  TrainJob job = train_job(options, by);
  job.dry_run = true;
  job.full_plan = options.is_full;
  job.ranks = options.ranks;
  job.plan_name = options.explained;
  job.fit = options.fit;
  job.fit_out = expand_path(options.fit_out);
  if (options.other_config.empty()) return job;
  job.other_path = expand_path(options.other_config);
  job.other = load_config(job.other_path, options.overrides, ConfigFor::training, site_defaults());
  return job;
}

Command::Action add_plan(CLI::App& app, const Invocation& by) {
  const auto options = std::make_shared<PlanOptions>();
  add_config_options(app, *options);
  add_start_options(app, *options);
  add_ranks_option(app, *options);
  if (by.is_alias)
    app.add_flag("--dry-run{plan}", options->dry_run, "print the plan; --dry-run=full lists every buffer")
        ->check(CLI::IsMember({"plan", "full"}));
  else
    app.add_flag("--full", options->is_full, "list every buffer");
  app.add_option(
         by.spelled("--explain", "--plan-explain"), options->explained,
         "of one module or parameter which unit it is in and why, its dtypes and bytes, and when it is gathered "
         "and freed (docs/plans.md)")
      ->type_name("NAME")
      ->check(not_empty);
  app.add_option(by.spelled("--diff", "--plan-diff"), options->other_config,
                 "what another configuration changes: units, bytes, gathers, schedule, bits; --set goes for both "
                 "(docs/plans.md)")
      ->type_name("OTHER.toml")
      ->check(not_empty);
  return [options, by] {
    return run_on_ranks([&] {
      options->is_full = options->is_full || options->dry_run == "full";
      const char *const explain = by.spelled("--explain", "--plan-explain"), *const diff =
                                                                                 by.spelled("--diff", "--plan-diff");
      const bool asks = !options->explained.empty() || !options->other_config.empty();
      if (!options->explained.empty() && !options->other_config.empty())
        throw refusal(fmt::format("{} and {} do not go together", explain, diff), "ask for one after the other");
      if (asks && options->is_full)
        throw refusal(fmt::format("{} beside {} or {}", by.spelled("--full", "--dry-run=full"), explain, diff),
                      "leave one of them out");
      return train_work(planned_job(*options, by));
    });
  };
}

Command::Action add_fit(CLI::App& app, const Invocation& by) {
  const auto options = std::make_shared<PlanOptions>();
  add_config_options(app, *options);
  add_ranks_option(app, *options);
  const char* const what = "choose the largest of what fits, not the nearest to the configuration (docs/memory.md)";
  if (by.is_alias)
    app.add_flag("--fit{nearest}", options->fit, what)->check(CLI::IsMember({"nearest", "largest"}));
  else
    app.add_flag("--largest", options->is_largest, what);
  app.add_flag("--overwrite", options->overwrite)->group("");
  app.add_flag("--verify-data", options->verify_data)->group("");
  app.add_flag("--dry-run{plan}", options->dry_run)->group("");
  app.add_option("--out", options->fit_out, "write the configuration with what was chosen")->type_name("FILE.toml");
  return [options, by] {
    return run_on_ranks([&] {
      if (options->dry_run == "full")
        throw refusal("--dry-run=full and --fit do not go together", "leave one of them out");
      if (options->fit.empty()) options->fit = options->is_largest ? "largest" : "nearest";
      return train_work(planned_job(*options, by));
    });
  };
}

}  // namespace

Command plan_command() {
  return {.name = "plan",
          .aliases = {"--dry-run", "--plan-explain", "--plan-diff"},
          .usage = "CONFIG.toml [--full] [--explain NAME] [--diff OTHER.toml]",
          .summary = "Prints what a run would take, and why; nothing is allocated or created.",
          .add = add_plan};
}

Command fit_command() {
  return {.name = "fit",
          .aliases = {"--fit"},
          .usage = "CONFIG.toml [--largest] [--out FILE.toml]",
          .summary = "Lists the settings that fit this machine, the largest first, and chooses one.",
          .add = add_fit};
}

}  // namespace zs
