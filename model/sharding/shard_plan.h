#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "model/nn/module.h"
#include "runtime/base/name_pattern.h"

namespace zs {

/// Rule for units of certain names, where they differ from the rest. What is not given is left to the other rules.
struct PlanRule {
  std::string pattern;  ///< pattern of a unit's name, which is its module's path; the root's is "root"
  std::optional<Reshard> reshard_after_forward = {};
  std::optional<DType> param = {}, reduce = {}, output = {};  ///< as in MixedPrecisionPolicy
  std::optional<SchemeOptions> scheme = {};
  std::optional<const GatherFormat*> gather_format = {};  ///< as in MixedPrecisionPolicy
  std::string key = "rules";                              ///< name that messages give to the list that the rule is of
};

/// Plan of which modules of a model are units, and what is gathered ahead of which: by patterns (NamePattern) of their
/// paths; the root's is empty. Whatever a plan says has an effect: a pattern that matches nothing, or that others leave
/// nothing to, is an Error(config) with the nearest names.
struct Plan {
  /// Modules that are units, in the order in which they run; the root always is one
  std::vector<std::string> apply = {};
  std::vector<std::string> ignore = {};  ///< modules that are in no unit, nor is anything below them (IsIgnored)
  std::vector<std::string> hooks = {};   ///< the forward of such a module opens all units in it at once
  std::vector<PlanRule> rules = {};      ///< for each thing that rules say, the first that matches a unit counts
  /// Above 0: how many entries of the order are gathered ahead of the one that runs; an entry is a unit that runs by
  /// itself, or all of one hook's. 0: as many units as PrefetchOptions says, in the order that was recorded.
  int forward_prefetch = 0, backward_prefetch = 0;
};

/// Result of resolving a plan for one model.
struct ResolvedPlan {
  /// A module that becomes a unit.
  struct Unit {
    Module* module;
    std::string name;     ///< the module's path, or "root"
    std::string pattern;  ///< the last of Plan::apply that matches; empty: none does, it is the root
    Module* hook;         ///< module whose forward opens it: its own, or the innermost hook around it
    /// Units that are gathered ahead when it runs; none: by the recorded order.
    std::optional<std::vector<std::size_t>> forward = {}, backward = {};
  };
  Plan plan;
  std::vector<Unit> units;         ///< the root, and the others as they are registered, parents before children
  std::vector<Module*> ignored;    ///< the outermost ones
  std::vector<std::string> names;  ///< paths of all modules, for messages

  /// Policy of one unit, for a rest whose precision is `base`.
  UnitPolicy policy(const Unit& unit, const MixedPrecisionPolicy& base) const;
  /// The rule that decides about one thing of a unit, such as &PlanRule::param; null: none.
  template <class Value>
  const PlanRule* rule(const Unit& unit, std::optional<Value> PlanRule::*what) const {
    for (const PlanRule& one : plan.rules)
      if ((one.*what).has_value() && NamePattern(one.pattern).matches(unit.name)) return &one;
    return nullptr;
  }
  /// A line for each list: "blocks.0 gathers ahead in forward: blocks.1".
  std::vector<std::string> describe_lists() const;
};

/// Changes nothing. Error(config) where the plan does not fit the model.
ResolvedPlan resolve(Module& root, const Plan& plan);

/// Makes the modules units of the runtime, which is new, with their hooks, policies and lists. A model may do it itself
/// (Module::shard_itself): then the plan is empty.
ResolvedPlan shard_by_plan(Module& root, ShardedRuntime& runtime, const Plan& plan);

}  // namespace zs
