#include "model/train/config/config_experts.h"

#include <algorithm>

#include "model/train/config/config_schema.h"
#include "model/train/config/optimizer_kind.h"
#include "model/train/config/pattern_entries.h"
#include "model/train/config/toml_text.h"
#include "runtime/base/units.h"

namespace zs {
namespace {

constexpr const char* kAxis = "ep";

/// True if a unit of experts has another policy than the rest.
bool is_placed(const Config::Experts& experts) {
  return experts.parallel > 1 || experts.group_size > 0 || experts.divide > 0;
}

/// Sizes of the axes that experts lie on.
struct ExpertAxes {
  std::int64_t ep, efsdp, edp;
  ExpertAxes(const Config::Experts& experts, int ranks)
      : ep(experts.parallel),
        efsdp(experts.group_size == 0 ? ranks / ep : experts.group_size),
        edp(ranks / ep / efsdp) {}
};

/// Refuses every key of [experts] that has another value than without it.
void refuse_without_mixture(ConfigDraft& draft) {
  Config usual;
  for (const ConfigKey& key : config_keys()) {
    const std::string name(key.name);
    if (!name.starts_with("experts.") || !are_good(draft, {name.c_str()})) continue;
    const std::string value = toml_value(key.slot(draft.config));
    if (value != toml_value(key.slot(usual)))
      draft.report(name, fmt::format("{} = {} without experts: the model is no mixture", name, value),
                   "leave it out, or train a model of a family that has experts");
  }
}

void refuse_without_effect(ConfigDraft& draft) {
  const Config::Experts& experts = draft.config.experts;
  if (experts.parallel == 1 && experts.dispatcher != Config{}.experts.dispatcher &&
      are_good(draft, {"experts.dispatcher"}))
    draft.report(
        "experts.dispatcher",
        fmt::format("experts.dispatcher = \"{}\" has no effect without experts.parallel above 1", experts.dispatcher),
        "set experts.parallel, or leave it out");
  if (!is_placed(experts) && !experts.apply.empty() && are_good(draft, {"experts.apply"}))
    draft.report("experts.apply",
                 "experts.apply has no effect without experts.parallel, experts.group_size or "
                 "experts.divide",
                 "set one of them, or leave it out");
}

/// Checks what experts that lie on some ranks alone go with.
void check_dealt(ConfigDraft& draft) {
  const Config& c = draft.config;
  const auto refuse = [&](const char* key, bool is_wrong, const std::string& with, const char* what_to_do) {
    if (is_wrong && are_good(draft, {key}))
      draft.report("experts.parallel", fmt::format("experts.parallel = {} {}", c.experts.parallel, with), what_to_do);
  };
  refuse("model.experts", c.model.experts % c.experts.parallel != 0,
         fmt::format("does not divide model.experts = {}", c.model.experts), "deal equally many experts to every rank");
  refuse("train.deterministic", c.train.deterministic, "does not go with train.deterministic",
         "leave one of them out: sums over the tokens of several ranks follow from how many these are");
  if (const OptimizerKind* const kind = find_optimizer_kind(c.train.optimizer))
    refuse("train.optimizer", kind->takes_whole,
           fmt::format("does not go with train.optimizer \"{}\", which takes parameters as a whole", kind->name),
           "use adamw, sgd, lion or schedule_free_adamw, or leave experts.parallel out");
}

}  // namespace

void check_experts_over_ranks(ConfigDraft& draft) {
  const Config& c = draft.config;
  if (!are_good(draft, {"model.family", "model.experts", "experts.parallel", "experts.group_size", "experts.divide"}))
    return;
  if (c.model.experts == 0) return refuse_without_mixture(draft);
  refuse_without_effect(draft);
  for (const std::string& pattern : c.experts.apply) {
    if (!are_good(draft, {"experts.apply"})) break;
    try {
      pattern_of("experts.apply", pattern);
    } catch (const Error& error) {
      draft.report("experts.apply", error.what_happened(), error.what_to_do());
    }
  }
  if (is_placed(c.experts) && c.shard.units == "plan" && are_good(draft, {"shard.units"}))
    draft.report("shard.units", "shard.units = \"plan\" does not go with [experts]",
                 "leave plan.apply out: experts are units of their own then");
  if (c.experts.parallel > 1) check_dealt(draft);
}

void check_expert_ranks(const Config& config, int ranks) {
  const Config::Experts& experts = config.experts;
  check_divides("experts.parallel", experts.parallel, ranks);
  const int others = ranks / static_cast<int>(experts.parallel);
  if (experts.group_size == 0 || others % experts.group_size == 0) return;
  throw Error(ExitCode::config,
              fmt::format("experts.parallel x experts.group_size = {} x {} does not divide the job's {} ranks",
                          experts.parallel, experts.group_size, ranks),
              {}, fmt::format("use an experts.group_size of {}", group_sizes_of(others)));
}

std::vector<GridAxis> expert_grid(const Config& config, int ranks) {
  const auto parallel = static_cast<int>(config.experts.parallel);
  if (parallel == 1) return {};
  return {{.name = "data", .size = ranks / parallel}, {.name = kAxis, .size = parallel}};
}

bool places_experts(const Config& config, const std::string& path) {
  const std::vector<std::string>& apply = config.experts.apply;
  const auto matches = [&](const std::string& pattern) { return NamePattern(pattern).matches(path); };
  return is_placed(config.experts) && (apply.empty() || std::any_of(apply.begin(), apply.end(), matches));
}

void check_expert_paths(const Config& config, const std::vector<std::string>& paths) {
  for (const std::string& text : config.experts.apply) {
    const NamePattern pattern(text);
    if (std::any_of(paths.begin(), paths.end(), [&](const std::string& path) { return pattern.matches(path); }))
      continue;
    throw Error(ExitCode::config, fmt::format("experts.apply: \"{}\" matches no experts", text), {},
                fmt::format("the nearest are {}", fmt::join(nearest_names(text, paths), ", ")));
  }
}

std::string describe_mixtures(const Config& config, int ranks) {
  const ModelConfig& model = config.model;
  if (model.experts == 0) return "";
  std::string text =
      fmt::format("mixtures: {} experts in {}, {} of them for each token\n", model.experts,
                  format_number(model.layers - std::ssize(model.dense_layers), "layer"), model.experts_per_token);
  if (!is_placed(config.experts)) return text;
  const ExpertAxes axes(config.experts, ranks);
  text += fmt::format("experts: over {} (ep), those of each sharded over {} (efsdp), in {} (edp)\n",
                      format_number(axes.ep, "rank"), axes.efsdp, format_number(axes.edp, "replica"));
  if (axes.ep == 1) return text;
  const std::int64_t tokens = config.train.micro_batch * config.train.sequence, chosen = model.experts_per_token;
  return text + fmt::format("tokens by {}: room for {} rows of {} a mixture, {} on average\n",
                            config.experts.dispatcher, axes.ep * tokens * std::min(chosen, model.experts / axes.ep),
                            model.width, tokens * chosen);
}

UnitPolicy expert_policy(UnitPolicy policy, const Config& config, int ranks) {
  const Config::Experts& experts = config.experts;
  if (experts.parallel > 1) policy.partition = {.axis = kAxis, .dims = {{"*", 0}}};
  const ExpertAxes axes(experts, ranks);
  SchemeOptions scheme = scheme_options(config);
  const bool has_groups = scheme.strategy == Strategy::hsdp || scheme.strategy == Strategy::nested;
  if (has_groups || axes.edp > 1) {
    if (!has_groups && scheme.strategy != Strategy::zero3) scheme.reshard_after_forward = true;
    scheme.strategy = axes.edp > 1 ? Strategy::hsdp : Strategy::zero3;
    scheme.group_size = axes.edp > 1 ? static_cast<int>(axes.efsdp) : 0;
  }
  // A number of ranks divides those of the rest.
  if (const std::int64_t between = scheme.reshard_after_forward.group(); between != 0 && axes.efsdp % between != 0)
    scheme.reshard_after_forward = true;
  policy.scheme = scheme;
  if (experts.divide > 0)
    policy.division = Division{Division::Rule::custom_last, static_cast<float>(experts.divide / ranks)};
  return policy;
}

Dispatcher dispatcher_of(const Config& config) {
  return config.experts.dispatcher == "all_gather" ? Dispatcher::all_gather : Dispatcher::all_to_all;
}

}  // namespace zs
