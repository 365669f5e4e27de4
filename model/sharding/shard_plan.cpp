#include "model/sharding/shard_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "model/sharding/prefetch_lists.h"
#include "runtime/base/usage_error.h"

namespace zs {
namespace {

constexpr const char* kRoot = "root";

std::string name_of(const Module& module) { return module.path().empty() ? kRoot : module.path(); }

/// True if the module, or one below it, has parameters.
bool has_parameters(const Module& module) {
  return !module.own_parameters().empty() || std::any_of(module.children().begin(), module.children().end(),
                                                         [](Module* child) { return has_parameters(*child); });
}

NamePattern pattern_of(const std::string& key, const std::string& text) try {
  return NamePattern(text);
} catch (const Error& error) {
  throw Error(error.code(), fmt::format("plan.{}: {}", key, error.what_happened()), {}, error.what_to_do());
}

/// The patterns of one key of a plan.
class Patterns {
 public:
  Patterns(std::string key, const std::vector<std::string>& texts) : key_(std::move(key)) {
    for (const std::string& text : texts) patterns_.push_back(pattern_of(key_, text));
  }

  /// The last one that matches.
  std::optional<std::size_t> last_match(const std::string& name) const {
    for (std::size_t i = patterns_.size(); i-- > 0;)
      if (patterns_[i].matches(name)) return i;
    return std::nullopt;
  }
  /// Each of them matches one of the names.
  void check(const std::vector<std::string>& names) const {
    for (const NamePattern& pattern : patterns_) {
      if (std::any_of(names.begin(), names.end(), [&](const std::string& name) { return pattern.matches(name); }))
        continue;
      refuse(pattern.text(), "matches no module",
             fmt::format("the nearest names are {}", fmt::join(nearest_names(pattern.text(), names), ", ")));
    }
  }
  [[noreturn]] void refuse(const std::string& pattern, const std::string& what, const std::string& what_to_do) const {
    throw Error(ExitCode::config, fmt::format("plan.{}: \"{}\" {}", key_, pattern, what), {}, what_to_do);
  }
  const std::vector<NamePattern>& all() const { return patterns_; }

 private:
  std::string key_;
  std::vector<NamePattern> patterns_;
};

/// Goes through the modules of a model, each once, where it is registered first.
class Resolver {
 public:
  Resolver(Module& root, const Plan& plan)
      : apply_("apply", plan.apply), ignore_("ignore", plan.ignore), hooks_("hooks", plan.hooks) {
    made_.plan = plan;
    visit(root, &root, false);
    for (const Patterns* patterns : {&apply_, &ignore_, &hooks_}) patterns->check(made_.names);
    check_apply();
    check_hooks();
    check_rules();
    set_prefetch_lists(made_);
  }

  ResolvedPlan take() { return std::move(made_); }

 private:
  void visit(Module& module, Module* hook, bool is_ignored) {
    if (!seen_.insert(&module).second) return;
    const bool is_root = made_.units.empty();
    made_.names.push_back(module.path());
    if (!is_ignored && ignore_.last_match(module.path())) {
      is_ignored = true;
      made_.ignored.push_back(&module);
    }
    const bool is_hook = !is_ignored && hooks_.last_match(module.path());
    if (is_hook) hook = &module;
    const auto pattern = apply_.last_match(module.path());
    if (is_root || (pattern && !is_ignored && has_parameters(module))) {
      const bool has_hook = is_hook || hooks_.last_match(hook->path());
      made_.units.push_back({&module, name_of(module), pattern && !is_ignored ? made_.plan.apply[*pattern] : "",
                             has_hook ? hook : &module});
    }
    for (Module* child : module.children()) visit(*child, hook, is_ignored);
  }

  bool has_unit(const std::function<bool(const ResolvedPlan::Unit&)>& is_one) const {
    return std::any_of(made_.units.begin(), made_.units.end(), is_one);
  }
  void check_apply() const {
    for (const NamePattern& pattern : apply_.all()) {
      if (has_unit([&](const auto& unit) { return !unit.pattern.empty() && pattern.matches(unit.module->path()); }))
        continue;
      apply_.refuse(pattern.text(), "matches modules alone that are ignored or have no parameters",
                    "leave it out, or change plan.ignore");
    }
  }
  void check_hooks() const {
    for (const NamePattern& pattern : hooks_.all()) {
      const auto is_opened = [&](const auto& unit) {
        return !unit.pattern.empty() && hooks_.last_match(unit.hook->path()) && pattern.matches(unit.hook->path());
      };
      if (!has_unit(is_opened))
        hooks_.refuse(pattern.text(), "matches modules that open no unit",
                      "leave it out, or make a module in them a unit by plan.apply");
    }
  }
  template <class Value>
  bool wins(const PlanRule& rule, std::optional<Value> PlanRule::*what) const {
    return !(rule.*what) || has_unit([&](const auto& unit) { return made_.rule(unit, what) == &rule; });
  }
  void check_rules() const {
    std::vector<std::string> names;
    for (const auto& unit : made_.units) names.push_back(unit.name);
    for (const PlanRule& rule : made_.plan.rules) {
      const NamePattern pattern = pattern_of(rule.key, rule.pattern);
      const auto refuse = [&](const std::string& what, const std::string& what_to_do) {
        throw Error(ExitCode::config, fmt::format("plan.{}: \"{}\" {}", rule.key, rule.pattern, what), {}, what_to_do);
      };
      if (std::none_of(names.begin(), names.end(), [&](const auto& name) { return pattern.matches(name); }))
        refuse("matches no unit",
               fmt::format("the nearest units are {}", fmt::join(nearest_names(rule.pattern, names), ", ")));
      if (!wins(rule, &PlanRule::reshard_after_forward) || !wins(rule, &PlanRule::param) ||
          !wins(rule, &PlanRule::reduce) || !wins(rule, &PlanRule::output) || !wins(rule, &PlanRule::scheme) ||
          !wins(rule, &PlanRule::gather_format))
        refuse("decides of no unit, as earlier patterns match all of its own", "leave it out, or put it first");
    }
  }

  Patterns apply_, ignore_, hooks_;
  ResolvedPlan made_;
  std::set<const Module*> seen_;
};

std::vector<int> numbers(const ResolvedPlan& plan, const std::vector<std::size_t>& units) {
  std::vector<int> all;
  for (const std::size_t unit : units) all.push_back(plan.units[unit].module->owner_unit());
  return all;
}

/// Modules whose forward opens other units than the one that they are.
void set_hooks(const ResolvedPlan& plan) {
  std::map<Module*, std::vector<int>> opened;
  for (const auto& unit : plan.units) {
    const std::vector<int>& own = unit.module->opened();  // and a frozen one beside it
    opened[unit.hook].insert(opened[unit.hook].end(), own.begin(), own.end());
  }
  for (const auto& unit : plan.units)
    if (unit.hook != unit.module && !opened.contains(unit.module)) unit.module->open({});
  for (auto& [hook, units] : opened) hook->open(std::move(units));
}

void set_lists(const ResolvedPlan& plan, ShardedRuntime& runtime) {
  for (const auto& unit : plan.units) {
    const int number = unit.module->owner_unit();
    if (unit.forward) runtime.set_prefetch(ExecOrder::Phase::forward, number, numbers(plan, *unit.forward));
    if (unit.backward) runtime.set_prefetch(ExecOrder::Phase::backward, number, numbers(plan, *unit.backward));
  }
}

void collect(const Module& module, std::set<const Parameter*>& parameters) {
  for (const auto& parameter : module.own_parameters()) parameters.insert(parameter.get());
  for (const Module* child : module.children()) collect(*child, parameters);
}

}  // namespace

UnitPolicy ResolvedPlan::policy(const Unit& unit, const MixedPrecisionPolicy& base) const {
  UnitPolicy policy;
  if (const PlanRule* const reshard = rule(unit, &PlanRule::reshard_after_forward))
    policy.reshard_after_forward = reshard->reshard_after_forward;
  if (const PlanRule* const scheme = rule(unit, &PlanRule::scheme)) policy.scheme = scheme->scheme;
  const PlanRule *const param = rule(unit, &PlanRule::param), *const reduce = rule(unit, &PlanRule::reduce),
                        *const output = rule(unit, &PlanRule::output),
                        *const gather = rule(unit, &PlanRule::gather_format);
  if (param == nullptr && reduce == nullptr && output == nullptr && gather == nullptr) return policy;
  MixedPrecisionPolicy precision = base;
  if (param != nullptr && *param->param != base.param) {
    precision.param = *param->param;
    // Activations that it takes from the others and gives to them are as theirs.
    if (!base.output) precision.output = base.param;
    if (precision.param == DType::f32) {
      precision.reduce = DType::f32;
      precision.rounds_stochastically = false;
    }
  }
  if (reduce != nullptr) precision.reduce = *reduce->reduce;
  if (output != nullptr) precision.output = output->output;
  if (gather != nullptr) precision.gather_format = *gather->gather_format;
  policy.precision = precision;
  return policy;
}

std::vector<std::string> ResolvedPlan::describe_lists() const {
  std::vector<std::string> lines;
  for (const auto& [list, phase] : {std::pair(&Unit::forward, "forward"), {&Unit::backward, "backward"}}) {
    for (const Unit& unit : units) {
      const auto& targets = unit.*list;
      if (!targets || targets->empty()) continue;
      std::vector<std::string> ahead;
      for (const std::size_t target : *targets) ahead.push_back(units[target].name);
      lines.push_back(fmt::format("{} gathers ahead in {}: {}", unit.name, phase, fmt::join(ahead, ", ")));
    }
  }
  return lines;
}

ResolvedPlan resolve(Module& root, const Plan& plan) { return Resolver(root, plan).take(); }

ResolvedPlan shard_by_plan(Module& root, ShardedRuntime& runtime, const Plan& plan) {
  if (root.shard_itself(runtime, plan)) {
    if (runtime.executor().units().empty())
      throw UsageError("shard_itself() of the model returned true, but has added no unit",
                       "add the units, or return false");
    return {plan, {}, {}, {}};
  }
  ResolvedPlan resolved = resolve(root, plan);
  std::map<const Module*, UnitPolicy> policies;
  for (const auto& unit : resolved.units) policies[unit.module] = resolved.policy(unit, runtime.options().precision);
  std::set<const Parameter*> ignored;
  for (const Module* module : resolved.ignored) collect(*module, ignored);
  shard_module(
      root, runtime, [&](const Module& module) { return policies.contains(&module); },
      [&](const Parameter& parameter) { return ignored.contains(&parameter); },
      [&](const Module& module) { return policies.at(&module); });
  set_hooks(resolved);
  if (!root.set_prefetch_lists(runtime, resolved)) set_lists(resolved, runtime);
  return resolved;
}

}  // namespace zs
