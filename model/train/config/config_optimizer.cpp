#include "model/train/config/config_optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "model/train/config/config_schema.h"
#include "model/train/config/optimizer_kind.h"
#include "model/train/config/pattern_entries.h"
#include "runtime/base/usage_error.h"

namespace zs {
namespace {

constexpr double kMostFactor = 1e6, kMostDecay = 100;

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(' ');
  return first == std::string_view::npos ? std::string_view()
                                         : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

[[noreturn]] void refuse_group(const std::string& text, const std::string& why) {
  throw Error(ExitCode::config, fmt::format("train.groups has \"{}\"{}", text, why), {},
              "write \"PATTERN: lr=FACTOR, decay=VALUE\", or one of the two, such as \"*.bias: decay=0\"");
}

float number_of(const std::string& entry, std::string_view text, double most) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= 0 && value <= most))
    refuse_group(entry, fmt::format(": \"{}\" is no number from 0 to {}", text, most));
  return static_cast<float>(value);
}

void check_groups(ConfigDraft& draft) {
  if (!are_good(draft, {"train.groups"})) return;
  for (const std::string& entry : draft.config.train.groups) {
    try {
      parse_group(entry);
    } catch (const Error& error) {
      draft.report("train.groups", error.what_happened(), error.what_to_do());
    }
  }
}

/// A key that the chosen optimizer has no use for, with another value than it has if nobody gives one.
void refuse_unsupported(ConfigDraft& draft, const OptimizerKind& own) {
  Config usual;
  std::vector<std::string_view> seen(own.keys);
  for (const OptimizerKind& other : optimizer_kinds()) {
    for (const std::string_view name : other.keys) {
      if (std::find(seen.begin(), seen.end(), name) != seen.end()) continue;
      seen.push_back(name);
      const ConfigKey& key = *find_config_key(name);
      const std::string value = toml_value(key.slot(draft.config)), text(name);
      if (value == toml_value(key.slot(usual)) || !are_good(draft, {text.c_str()})) continue;
      draft.report(text, fmt::format("{} = {} does not go with train.optimizer \"{}\"", name, value, own.name),
                   fmt::format("leave it out, or use train.optimizer = \"{}\"", other.name));
    }
  }
}

void check_average(ConfigDraft& draft, const OptimizerKind& kind) {
  const Config& c = draft.config;
  if (!kind.trains_average) return;
  if (are_good(draft, {"train.average"}) && c.train.average > 0)
    draft.report("train.average",
                 fmt::format("train.average = {} does not go with train.optimizer \"{}\"", c.train.average, kind.name),
                 "leave it out: it has an average of its own");
  if (are_good(draft, {"offload.weights", "offload.gradients", "offload.moments"}) && c.offload.has_any())
    draft.report("train.optimizer",
                 fmt::format("train.optimizer = \"{}\" does not go with what the host keeps (offload)", kind.name),
                 "leave one of them out");
}

}  // namespace

ParameterGroup parse_group(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) refuse_group(text, "");
  ParameterGroup group{.pattern = std::string(trimmed(text.substr(0, colon)))};
  if (group.pattern.empty()) refuse_group(text, ", without a pattern");
  pattern_of("train.groups", group.pattern);  // for its checks
  std::optional<float> factor;
  const std::string settings = text.substr(colon + 1);
  for (std::size_t begin = 0; begin <= settings.size();) {
    const std::size_t end = std::min(settings.find(',', begin), settings.size());
    const std::string_view setting = trimmed(std::string_view(settings).substr(begin, end - begin));
    const std::size_t sign = std::min(setting.find('='), setting.size());
    const std::string_view key = trimmed(setting.substr(0, sign)),
                           value = trimmed(setting.substr(std::min(sign + 1, setting.size())));
    if (key != "lr" && key != "decay") refuse_group(text, key.empty() ? "" : fmt::format(": it has no \"{}\"", key));
    std::optional<float>& of = key == "lr" ? factor : group.weight_decay;
    if (of) refuse_group(text, fmt::format(", with {} twice", key));
    of = number_of(text, value, key == "lr" ? kMostFactor : kMostDecay);
    begin = end + 1;
  }
  group.lr_scale = factor.value_or(1.0f);
  return group;
}

std::vector<std::string> group_patterns(const Config& config) {
  std::vector<std::string> patterns;
  for (const std::string& entry : config.train.groups) patterns.push_back(parse_group(entry).pattern);
  return patterns;
}

void resolve_optimizer(ConfigDraft& draft) {
  check_groups(draft);
  if (!are_good(draft, {"train.optimizer"})) return;
  const OptimizerKind& kind = optimizer_kind(draft.config);
  if (kind.fill != nullptr) kind.fill(draft);
  refuse_unsupported(draft, kind);
  if (kind.check != nullptr) kind.check(draft);
  check_average(draft, kind);
}

std::unique_ptr<Optimizer> make_optimizer(Executor& executor, const Config& config) try {
  return optimizer_kind(config).make(executor, config);
} catch (const UsageError& error) {  // all but the names of parameters is known to be right
  const char* const key = error.what_happened().starts_with("Muon: no matrix") ? "train.muon: " : "train.groups: ";
  throw Error(ExitCode::config, key + error.what_happened(), {}, error.what_to_do());
}

}  // namespace zs
