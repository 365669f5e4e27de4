#include "model/train/plan/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <tuple>

#include "model/train/config/config_schema.h"
#include "model/train/session/session.h"
#include "runtime/base/name_pattern.h"
#include "runtime/base/units.h"

namespace zs {
namespace {

const char* name_of_phase(ExecOrder::Phase phase) {
  return phase == ExecOrder::Phase::forward ? "forward" : "backward";
}

void add_places(const Module& module, TrainPlan& plan) {
  plan.places.push_back({module.path().empty() ? "root" : module.path(), module.owner_unit(), module.is_unit()});
  for (const auto& parameter : module.own_parameters())
    plan.places.push_back({parameter->name(), module.owner_unit(), false});
  for (const Module* child : module.children()) add_places(*child, plan);
}

/// One line for each thing that a rule of the plan decides about a unit.
std::vector<std::string> reasons(const ResolvedPlan& plan, const ResolvedPlan::Unit& unit) {
  std::vector<std::string> lines;
  lines.push_back(unit.pattern.empty() ? "the root, which owns what is in no other unit"
                                       : fmt::format("plan.apply \"{}\"", unit.pattern));
  if (unit.hook != unit.module)
    lines.push_back(fmt::format("opened by the forward of {} (plan.hooks)",
                                unit.hook->path().empty() ? "root" : unit.hook->path()));
  const auto add = [&](const char* thing, auto what) {
    if (const PlanRule* const rule = plan.rule(unit, what))
      lines.push_back(fmt::format("{} by plan.{} \"{}\"", thing, rule->key, rule->pattern));
  };
  add("resharding", &PlanRule::reshard_after_forward);
  add("strategy", &PlanRule::scheme);
  add("parameters", &PlanRule::param);
  add("reduction", &PlanRule::reduce);
  add("output", &PlanRule::output);
  add("gather format", &PlanRule::gather_format);
  return lines;
}

struct ListWarnings {
  void add(const std::pair<std::size_t, std::size_t>& units, std::string text) {
    if (said.insert(units).second) texts.push_back(std::move(text));
  }
  std::set<std::pair<std::size_t, std::size_t>> said;
  std::vector<std::string> texts;
};

/// The order that one micro-batch recorded, and what was listed against it.
class ListCheck {
 public:
  ListCheck(Session& session, const ResolvedPlan& plan, ExecOrder::Phase phase)
      : runtime_(session.runtime()),
        plan_(plan),
        phase_(phase),
        order_(runtime_.scheduler().order(Mode::train).units(phase)) {}

  /// Adds one warning of two units that are listed against the order, in forward, in backward, or both.
  void check(ListWarnings& warnings) const {
    for (std::size_t unit = 0; unit < plan_.units.size(); ++unit) {
      const auto& list = phase_ == ExecOrder::Phase::forward ? plan_.units[unit].forward : plan_.units[unit].backward;
      if (list) check(unit, *list, warnings);
    }
  }

 private:
  void check(std::size_t listing, const std::vector<std::size_t>& list, ListWarnings& warnings) const {
    const auto& unit = plan_.units[listing];
    const std::size_t from = position(unit, 0);
    if (from == order_.size()) return;  // nothing of it runs in this phase
    std::size_t last = from;
    const ResolvedPlan::Unit* latest = nullptr;
    for (const std::size_t number : list) {
      const auto& target = plan_.units[number];
      const std::size_t at = position(target, from + 1), before = position(target, 0);
      if (before == order_.size()) continue;
      const std::string begin =
          fmt::format("the plan gathers {} ahead of {} in {}: ", target.name, unit.name, name_of_phase(phase_));
      const std::pair<std::size_t, std::size_t> both = std::minmax(listing, number);
      if (at == order_.size()) {
        warnings.add(both, fmt::format("{}{} runs first ({} of {}, {} is {}), so it is listed for nothing", begin,
                                       target.name, before + 1, order_.size(), unit.name, from + 1));
      } else if (at < last && target.hook != latest->hook) {  // units that one hook opens have no order
        warnings.add(both, fmt::format("{}it runs before {} ({} and {} of {}), which is gathered first", begin,
                                       latest->name, at + 1, last + 1, order_.size()));
      } else {
        last = std::max(last, at);
        latest = &target;
      }
    }
  }
  /// Position of the unit's first turn from there on; the end: it has none.
  std::size_t position(const ResolvedPlan::Unit& unit, std::size_t from) const {
    const auto begin = order_.begin() + static_cast<std::ptrdiff_t>(std::min(from, order_.size()));
    return static_cast<std::size_t>(std::find(begin, order_.end(), unit.module->owner_unit()) - order_.begin());
  }

  ShardedRuntime& runtime_;
  const ResolvedPlan& plan_;
  ExecOrder::Phase phase_;
  const std::vector<int>& order_;
};

/// A module whose forward nobody calls cannot be a unit.
void check_all_run(Session& session, const ResolvedPlan& plan) {
  const auto& order = session.runtime().scheduler().order(Mode::train).units(ExecOrder::Phase::forward);
  for (const auto& unit : plan.units) {
    const int number = unit.module->owner_unit();
    if (std::find(order.begin(), order.end(), number) != order.end()) continue;
    throw Error(ExitCode::config,
                fmt::format("plan.apply: \"{}\" makes {} a unit, whose forward never runs", unit.pattern, unit.name),
                {}, "name the modules in it instead, or the one around it");
  }
}

/// The op of a micro-batch next to a moment of the trace, in the direction of `step`.
std::string op_beside(const std::vector<TraceEntry>& trace, std::size_t moment, int step) {
  for (std::ptrdiff_t i = static_cast<std::ptrdiff_t>(moment) - (step < 0 ? 1 : 0); i >= 0 && i < std::ssize(trace);
       i += step) {
    const TraceEntry& entry = trace[static_cast<std::size_t>(i)];
    if (entry.kind == TraceEntry::Kind::op && entry.stream == StreamRole::compute) return entry.op.name;
  }
  return "";
}

std::string phase_at(const std::vector<TraceEntry>& trace, std::size_t moment) {
  return trace.empty() ? "" : trace[std::min(moment, trace.size() - 1)].phase;
}

std::string describe_actions(const TrainPlan& plan, int unit) {
  std::string text;
  for (std::size_t i = 0; i < plan.micro_batch.size(); ++i) {
    const Action& action = plan.micro_batch[i];
    if (action.unit != unit) continue;
    std::vector<std::string> beside;
    if (const std::string op = op_beside(plan.trace, plan.moments[i], -1); !op.empty())
      beside.push_back("behind " + op);
    if (const std::string op = op_beside(plan.trace, plan.moments[i], 1); !op.empty()) beside.push_back("before " + op);
    text += fmt::format("  {:<18}{:<10}{}\n", name_of(action.kind), phase_at(plan.trace, plan.moments[i]),
                        fmt::join(beside, ", "));
  }
  return text;
}

std::int64_t count_of(const TrainPlan& plan, std::initializer_list<Action::Kind> kinds) {
  return std::count_if(plan.micro_batch.begin(), plan.micro_batch.end(), [&](const Action& action) {
    return std::find(kinds.begin(), kinds.end(), action.kind) != kinds.end();
  });
}

std::set<std::string> unit_names(const TrainPlan& plan) {
  std::set<std::string> names;
  for (const TrainPlan::Unit& unit : plan.units) names.insert(unit.name);
  return names;
}

std::string only_in(const std::set<std::string>& some, const std::set<std::string>& others) {
  constexpr std::size_t kMost = 8;
  std::vector<std::string> names;
  std::set_difference(some.begin(), some.end(), others.begin(), others.end(), std::back_inserter(names));
  const std::size_t more = names.size() - std::min(names.size(), kMost);
  names.resize(names.size() - more);
  return fmt::format("{}{}", fmt::join(names, ", "), more > 0 ? fmt::format(" and {} more", more) : "");
}

/// Keys of which the two have different values.
std::vector<std::string> different_keys(const Config& a, const Config& b) {
  Config first = a, second = b;
  std::vector<std::string> keys;
  for (const ConfigKey& key : config_keys())
    if (toml_value(key.slot(first)) != toml_value(key.slot(second))) keys.emplace_back(key.name);
  return keys;
}

/// True if the key says how fast and where, and, with train.deterministic, no bit of the weights depends on it.
bool is_free(const std::string& key) {
  constexpr std::array kTables = {"shard.", "plan.", "offload.", "comm.", "watchdog.", "run.", "checkpoint."};
  constexpr std::array kBits = {"shard.compress_gather", "shard.compress_reduce", "plan.param", "plan.reduce",
                                "plan.output",           "plan.gather",           "comm.omit",  "comm.transport"};
  constexpr std::array kOthers = {"name", "train.time_limit", "train.recompute"};
  const auto is_one = [&](const char* one) { return key == one; };
  if (std::any_of(kBits.begin(), kBits.end(), is_one)) return false;
  return std::any_of(kTables.begin(), kTables.end(), [&](const char* table) { return key.starts_with(table); }) ||
         std::any_of(kOthers.begin(), kOthers.end(), is_one);
}

std::string describe_bits(const Config& a, const Config& b, const std::vector<std::string>& keys) {
  std::vector<std::string> deciding;
  bool changes_order = false;
  for (const std::string& key : keys) {
    if (!is_free(key)) deciding.push_back(key);
    changes_order = changes_order || key.starts_with("shard.") || key.starts_with("plan.") || key == "comm.ranks";
  }
  if (!deciding.empty()) return fmt::format("the bits of the weights differ: {}", fmt::join(deciding, ", "));
  if (!changes_order) return "the bits of the weights stay the same";
  return a.train.deterministic && b.train.deterministic
             ? "the bits of the weights stay the same (train.deterministic)"
             : "the weights stay the same but for rounding, where sums are cut otherwise; with train.deterministic = "
               "true they stay the same bits";
}

std::string first_difference(const TrainPlan& a, const TrainPlan& b) {
  const auto action = [](const TrainPlan& plan, std::size_t i) {
    if (i >= plan.micro_batch.size()) return std::string("the end");
    const Action& one = plan.micro_batch[i];
    return fmt::format("{} {}", name_of(one.kind), plan.units[static_cast<std::size_t>(one.unit)].name);
  };
  for (std::size_t i = 0; i < std::max(a.micro_batch.size(), b.micro_batch.size()); ++i)
    if (action(a, i) != action(b, i))
      return fmt::format("the schedules part at action {}: {}, and {}", i + 1, action(a, i), action(b, i));
  return "the schedules are the same";
}

}  // namespace

void note_places(TrainPlan& plan, Session& session) {
  add_places(session.model(), plan);
  const ResolvedPlan* const resolved = session.resolved_plan();
  if (resolved == nullptr) {
    for (TrainPlan::Unit& unit : plan.units)
      unit.why.push_back(fmt::format("shard.units \"{}\"", session.config().shard.units));
    return;
  }
  plan.lists = resolved->describe_lists();
  for (const auto& unit : resolved->units)
    plan.units.at(static_cast<std::size_t>(unit.module->owner_unit())).why = reasons(*resolved, unit);
}

std::vector<std::string> list_warnings(Session& session) {
  ListWarnings warnings;
  const ResolvedPlan* const plan = session.resolved_plan();
  if (plan == nullptr) return {};
  check_all_run(session, *plan);
  for (const ExecOrder::Phase phase : {ExecOrder::Phase::forward, ExecOrder::Phase::backward})
    ListCheck(session, *plan, phase).check(warnings);
  return warnings.texts;
}

std::string describe_empty_micro_batches(const Config& config, int ranks) {
  const int shares = data_shares(config, ranks);
  const std::int64_t micro = config.train.micro_batch, batch = config.train.global_batch,
                     step = micro_batches_a_rank(config, shares) * shares * micro;
  if (step == batch) return "";
  return fmt::format(
      "train.global_batch {} is not a multiple of {} x train.micro_batch {}: {} of a step's {} micro-batches are empty",
      batch, format_number(shares, shares == ranks ? "rank" : "share"), micro, (step - batch) / micro, step / micro);
}

std::string explain(const TrainPlan& plan, const Config& config, const std::string& name) {
  const auto place = std::find_if(plan.places.begin(), plan.places.end(),
                                  [&](const TrainPlan::Place& one) { return one.name == name; });
  if (place == plan.places.end()) {
    std::vector<std::string> names;
    for (const TrainPlan::Place& one : plan.places) names.push_back(one.name);
    throw Error(ExitCode::usage, fmt::format("--plan-explain: the model has no \"{}\"", name), {},
                fmt::format("the nearest names are {}", fmt::join(nearest_names(name, names), ", ")));
  }
  const TrainPlan::Unit& unit = plan.units.at(static_cast<std::size_t>(place->unit));
  const MixedPrecisionPolicy& precision = unit.precision;
  const UnitLayout& layout = *unit.layout;
  std::string text = fmt::format("{}: {}\n", name, place->is_unit ? "a unit" : "a part of the unit " + unit.name);
  text += fmt::format("why         {}\n", fmt::join(unit.why, "\n            "));
  text += fmt::format("strategy    {}\n", unit.scheme);
  text += fmt::format("dtypes      parameters {}, {}output {}; {}\n", name_of(precision.param),
                      unit.is_frozen ? "" : fmt::format("reduction {}, ", name_of(precision.reduce)),
                      name_of(precision.output.value_or(precision.param)),
                      unit.held_format != nullptr ? fmt::format("frozen, held as {}", unit.held_format->name)
                      : unit.has_master           ? "masters f32"
                                                  : "frozen, held in bf16");
  if (precision.gather_format != nullptr) text += fmt::format("gathered as {}\n", precision.gather_format->name());
  for (const FlatView& view : layout.views())
    if (view.name == name) text += fmt::format("shape       {}\n", view.shape.str());
  text += fmt::format("bytes       {} gathered, {} of {} on this rank; {} parameters{}\n",
                      format_bytes(layout.numel() * size_of(precision.param)), format_bytes(unit.weights_bytes()),
                      unit.has_master ? "f32 masters" : "frozen weights", layout.views().size(),
                      unit.is_zero_copy ? "; read where its shards lie, without a copy" : "");
  for (const std::string& list : plan.lists)
    if (list.starts_with(unit.name + " ") || (list + ",").find(fmt::format(" {},", unit.name)) != std::string::npos)
      text += fmt::format("list        {}\n", list);
  if (config.plan.forward == 0 || config.plan.backward == 0)
    text += fmt::format("ahead       {} unit{} in the order in which they ran (shard.prefetch)\n",
                        config.shard.prefetch, config.shard.prefetch == 1 ? "" : "s");
  return text + "in the last micro-batch of a step, as the host asks for it\n" + describe_actions(plan, place->unit);
}

std::string describe_difference(const PlannedRun& a, const PlannedRun& b) {
  const std::vector<std::string> keys = different_keys(a.config, b.config);
  Config first = a.config, second = b.config;
  std::string text = fmt::format("A: {}\nB: {}\n\nkeys\n", a.name, b.name);
  for (const std::string& key : keys) {
    const ConfigKey& row = *find_config_key(key);
    text += fmt::format("  {:<32}{}  ->  {}\n", key, toml_value(row.slot(first)), toml_value(row.slot(second)));
  }
  if (keys.empty()) text += "  none\n";
  text += fmt::format("\n{:<34}{:>16}{:>16}{:>16}\n", "", "A", "B", "B - A");
  const auto line = [&](const char* what, std::int64_t x, std::int64_t y) {
    text += fmt::format("{:<34}{:>16}{:>16}{:>+16}\n", what, x, y, y - x);
  };
  using Kind = Action::Kind;
  line("units", std::ssize(a.plan.units), std::ssize(b.plan.units));
  line("bytes at the peak of a step", a.plan.step_peak_bytes, b.plan.step_peak_bytes);
  line("bytes between steps", a.plan.persistent_bytes, b.plan.persistent_bytes);
  line("bytes from the system", a.plan.reserved_bytes, b.plan.reserved_bytes);
  line("gathers in a micro-batch", count_of(a.plan, {Kind::gather, Kind::two_level_gather, Kind::gather_secondary}),
       count_of(b.plan, {Kind::gather, Kind::two_level_gather, Kind::gather_secondary}));
  line("reductions in a micro-batch", count_of(a.plan, {Kind::reduce}), count_of(b.plan, {Kind::reduce}));
  const std::set<std::string> of_a = unit_names(a.plan), of_b = unit_names(b.plan);
  for (const auto& [side, some, others] : {std::tuple("A", &of_a, &of_b), std::tuple("B", &of_b, &of_a)})
    if (const std::string names = only_in(*some, *others); !names.empty())
      text += fmt::format("units of {} alone: {}\n", side, names);
  return text + fmt::format("{}\n{}\n", first_difference(a.plan, b.plan), describe_bits(a.config, b.config, keys));
}

}  // namespace zs
