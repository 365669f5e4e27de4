#include "model/train/cli/plan_command.h"

#include <cstdlib>
#include <string_view>

#include "model/train/cli/number_option.h"

namespace zs {

std::string PlanCommand::given() const {
  if (ranks > 0) return "--ranks";
  if (!fit.empty()) return "--fit";
  if (!explained.empty()) return "--plan-explain";
  return other_config.empty() ? "" : "--plan-diff";
}

std::optional<Error> PlanCommand::misplaced(std::string& dry_run) const {
  const auto refuse = [](const char* what, const char* what_to_do) {
    return Error(ExitCode::usage, what, "command line", what_to_do);
  };
  if (!explained.empty() + !other_config.empty() + !fit.empty() > 1)
    return refuse("several of --plan-explain, --plan-diff and --fit at once", "ask for one after the other");
  if (asks() && dry_run == "full")
    return refuse("--dry-run=full beside --plan-explain, --plan-diff or --fit", "leave one of them out");
  if (asks()) dry_run = "plan";
  if (ranks > 0 && dry_run.empty())
    return refuse("--ranks without a dry run", "use mpirun -np or comm.ranks, or add --dry-run");
  const char* const size = std::getenv("OMPI_COMM_WORLD_SIZE");
  if (ranks > 0 && size != nullptr && std::string_view(size) != "1")
    return refuse("--ranks plans in one process, and mpirun has started several", "leave out mpirun");
  return std::nullopt;
}

void add_plan_options(CLI::App& app, PlanCommand& command) {
  const auto is_named = [](const std::string& text) {
    return text.empty() ? std::string("needs a name") : std::string();
  };
  app.add_option("--ranks", command.ranks,
                 "with a dry run: so many ranks, planned in this one process; any number, whatever the machine has")
      ->check(integer_from(1, 1 << 20));
  app.add_option(
         "--plan-explain", command.explained,
         "a dry run that says of one module or parameter which unit it is in and why, its dtypes and bytes, and "
         "when it is gathered and freed (docs/plans.md)")
      ->type_name("NAME")
      ->check(is_named);
  app.add_flag("--fit{nearest}", command.fit,
               "a dry run that lists the settings of micro-batch, sequence length, residence, recomputation and "
               "strategy that fit this machine, the largest first, and chooses the nearest to the configuration "
               "(--fit=largest: the first); --out FILE.toml writes that (docs/memory.md)")
      ->check(CLI::IsMember({"nearest", "largest"}));
  app.add_option("--plan-diff", command.other_config,
                 "a dry run that says what another configuration changes: units, bytes, gathers, schedule, bits; --set "
                 "goes for both (docs/plans.md)")
      ->type_name("OTHER.toml")
      ->check(is_named);
}

}  // namespace zs
