#pragma once

#include <CLI/CLI.hpp>

#include <optional>
#include <string>

#include "runtime/base/check.h"

namespace zs {

/// Questions to a dry run beside the plan, or instead of it.
struct PlanCommand {
  int ranks = 0;             ///< 0: as launched, or comm.ranks
  std::string explained;     ///< a module or parameter; empty: none
  std::string other_config;  ///< configuration to compare with; empty: nothing
  std::string fit;           ///< "nearest" or "largest" of what fits; empty: not asked for
  std::string fit_out;       ///< file to write that to; empty: none

  bool asks() const { return !explained.empty() || !other_config.empty() || !fit.empty(); }
  /// The first of its options that was given; empty: none.
  std::string given() const;
  /// Error where options do not go together. `dry_run` becomes "plan" where one of them asks for it.
  std::optional<Error> misplaced(std::string& dry_run) const;
};

void add_plan_options(CLI::App& app, PlanCommand& command);

}  // namespace zs
