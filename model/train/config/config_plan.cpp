#include "model/train/config/config_plan.h"

#include <algorithm>

#include "model/train/config/config_schema.h"
#include "model/train/config/pattern_entries.h"
#include "runtime/base/parse_integer.h"

namespace zs {
namespace {

[[noreturn]] void refuse_value(const std::string& key, const std::string& value, const std::string& what_to_do) {
  throw Error(ExitCode::config, fmt::format("{} has \"{}\"", key, value), {}, what_to_do);
}

Reshard reshard_of(const std::string& key, const std::string& value) {
  if (value == "true" || value == "false") return value == "true";
  const auto ranks = parse_integer<std::int64_t>(value);
  if (!ranks || *ranks < 1 || *ranks > 1 << 20)
    refuse_value(key, value, "write true, false, or the number of ranks over which parameters stay sharded in between");
  return Reshard::over(*ranks);
}

DType dtype_of(const std::string& key, const std::string& value) {
  if (value != "f32" && value != "bf16") refuse_value(key, value, "write f32 or bf16");
  return value == "bf16" ? DType::bf16 : DType::f32;
}

/// Scheme as a run of its own would have it by default, with the run's groups.
SchemeOptions scheme_of(const std::string& key, const std::string& value, const Config& config) {
  for (std::string_view rest = kStrategies;;) {
    const std::size_t end = std::min(rest.find('|'), rest.size());
    if (rest.substr(0, end) == value) break;
    if (end == rest.size()) refuse_value(key, value, fmt::format("write one of {}", kStrategies));
    rest.remove_prefix(end + 1);
  }
  const Strategy strategy = strategy_of(value);
  const bool has_groups = strategy == Strategy::hsdp || strategy == Strategy::nested;
  const bool shards_parameters = has_groups || strategy == Strategy::zero3;
  return {.strategy = strategy,
          .group_size = has_groups ? static_cast<int>(config.shard.group_size) : 0,
          .reshard_after_forward = shards_parameters,
          .reduce_every_micro_batch = strategy != Strategy::zero1 && strategy != Strategy::shard_grad_op};
}

/// A key whose entries are "PATTERN=VALUE", and what they are to the rules of a plan.
struct RuleKey {
  const char* name;  // below plan.
  const std::vector<std::string>& (*entries)(const Config::Plan&);
  const char* example;
  void (*read)(PlanRule&, const std::string& key, const std::string& value, const Config&);
};

constexpr RuleKey kRuleKeys[] = {
    {"reshard", [](const Config::Plan& p) -> const std::vector<std::string>& { return p.reshard; },
     "blocks.{0-3}=false",
     [](PlanRule& rule, const std::string& key, const std::string& value, const Config&) {
       rule.reshard_after_forward = reshard_of(key, value);
     }},
    {"strategy", [](const Config::Plan& p) -> const std::vector<std::string>& { return p.strategy; }, "root=ddp",
     [](PlanRule& rule, const std::string& key, const std::string& value, const Config& config) {
       rule.scheme = scheme_of(key, value, config);
     }},
    {"param", [](const Config::Plan& p) -> const std::vector<std::string>& { return p.param; }, "head=f32",
     [](PlanRule& rule, const std::string& key, const std::string& value, const Config&) {
       rule.param = dtype_of(key, value);
     }},
    {"reduce", [](const Config::Plan& p) -> const std::vector<std::string>& { return p.reduce; }, "head=f32",
     [](PlanRule& rule, const std::string& key, const std::string& value, const Config&) {
       rule.reduce = dtype_of(key, value);
     }},
    {"output", [](const Config::Plan& p) -> const std::vector<std::string>& { return p.output; }, "blocks.*=f32",
     [](PlanRule& rule, const std::string& key, const std::string& value, const Config&) {
       rule.output = dtype_of(key, value);
     }},
    {"gather", [](const Config::Plan& p) -> const std::vector<std::string>& { return p.gather; }, "blocks.*=fp8",
     [](PlanRule& rule, const std::string& key, const std::string& value, const Config& config) {
       if (value != "none" && value != "int8" && value != "fp8") refuse_value(key, value, "write none, int8 or fp8");
       if (value != "none" && config.train.deterministic)
         throw Error(ExitCode::config, fmt::format("{} = \"{}\" does not go with train.deterministic", key, value), {},
                     "what is rounded depends on the number of ranks: leave one of them out");
       rule.gather_format = gather_format_named(value);
     }},
};

PlanRule rule_of(const RuleKey& key, const std::string& entry, const Config& config) {
  const std::string name = fmt::format("plan.{}", key.name);
  PatternEntry parsed = PatternEntry::parse(name, entry, key.example);
  PlanRule rule{.pattern = parsed.pattern.text(), .key = key.name};
  key.read(rule, name, parsed.value, config);
  return rule;
}

/// Every entry by itself.
void check_entries(ConfigDraft& draft) {
  const Config& config = draft.config;
  const auto report_of = [&](const std::string& key, const auto& check) {
    if (!are_good(draft, {key.c_str()})) return;
    try {
      check();
    } catch (const Error& error) {
      draft.report(key, error.what_happened(), error.what_to_do());
    }
  };
  for (const auto& [key, patterns] :
       {std::pair("plan.apply", &config.plan.apply), std::pair("plan.hooks", &config.plan.hooks)})
    report_of(key, [&, key = key, patterns = patterns] {
      for (const std::string& pattern : *patterns) pattern_of(key, pattern);
    });
  for (const RuleKey& key : kRuleKeys)
    report_of(fmt::format("plan.{}", key.name), [&] {
      for (const std::string& entry : key.entries(config.plan)) rule_of(key, entry, config);
    });
}

/// Refuses other keys of a plan, which have no effect without plan.apply.
void refuse_the_rest(ConfigDraft& draft) {
  Config usual;
  for (const ConfigKey& key : config_keys()) {
    const std::string name(key.name);
    if (!name.starts_with("plan.") || !draft.is_given(name) || !are_good(draft, {name.c_str()})) continue;
    const std::string value = toml_value(key.slot(draft.config));
    if (value != toml_value(key.slot(usual)))
      draft.report(name, fmt::format("{} = {} has no effect without plan.apply", name, value),
                   "say by plan.apply which modules are units, or leave it out");
  }
}

}  // namespace

void resolve_plan(ConfigDraft& draft) {
  Config::Shard& shard = draft.config.shard;
  const Config::Plan& plan = draft.config.plan;
  if (!are_good(draft, {"shard.units", "plan.apply"})) return;
  if (plan.apply.empty()) {
    if (shard.units == "plan")
      draft.report("shard.units", "shard.units = \"plan\" without a plan", "say by plan.apply which modules are units");
    return refuse_the_rest(draft);
  }
  if (draft.is_given("shard.units") && shard.units != "plan") {
    draft.report("shard.units", fmt::format("shard.units = \"{}\" does not go with plan.apply", shard.units),
                 "leave one of them out");
    return;
  }
  shard.units = "plan";
  check_entries(draft);
}

Plan plan_of(const Config& config) {
  Plan plan{.apply = config.plan.apply, .hooks = config.plan.hooks};
  plan.forward_prefetch = static_cast<int>(config.plan.forward);
  plan.backward_prefetch = static_cast<int>(config.plan.backward);
  for (const RuleKey& key : kRuleKeys)
    for (const std::string& entry : key.entries(config.plan)) plan.rules.push_back(rule_of(key, entry, config));
  return plan;
}

bool has_groups_by_plan(const Config& config) {
  return std::any_of(config.plan.strategy.begin(), config.plan.strategy.end(),
                     [](const std::string& entry) { return entry.ends_with("=hsdp") || entry.ends_with("=nested"); });
}

void check_plan_ranks(const Config& config, int ranks) {
  if (config.shard.units != "plan") return;
  for (const PlanRule& rule : plan_of(config).rules) {
    if (!rule.scheme) continue;
    const SchemeOptions& scheme = *rule.scheme;
    if (scheme.group_size == 0 && (scheme.strategy == Strategy::hsdp || scheme.strategy == Strategy::nested))
      continue;  // the ranks of a host, which are known later
    try {
      const ShardScheme checked(scheme, 0, ranks);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("plan.strategy, \"{}\": {}", rule.pattern, error.what_happened()), {},
                  error.what_to_do());
    }
  }
}

}  // namespace zs
