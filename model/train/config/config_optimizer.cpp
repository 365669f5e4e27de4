#include "model/train/config/config_optimizer.h"

#include <charconv>
#include <cmath>

#include "model/train/config/pattern_entries.h"
#include "runtime/base/usage_error.h"
#include "runtime/shard/adamw.h"
#include "runtime/shard/sgd.h"

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

void resolve_optimizer(ConfigDraft& draft) {
  Config::Train& train = draft.config.train;
  const Config::Train usual;
  check_groups(draft);
  if (!are_good(draft, {"train.optimizer"})) return;
  const bool is_sgd = train.optimizer == "sgd";
  if (is_sgd && !draft.is_given("train.weight_decay")) train.weight_decay = 0;
  const auto refuse = [&](const char* key, bool is_unusual, const std::string& value) {
    if (!is_unusual || !are_good(draft, {key})) return;
    draft.report(key, fmt::format("{} = {} does not go with train.optimizer \"{}\"", key, value, train.optimizer),
                 fmt::format("leave it out, or use train.optimizer = \"{}\"", is_sgd ? "adamw" : "sgd"));
  };
  if (is_sgd) {
    refuse("train.beta1", train.beta1 != usual.beta1, fmt::format("{}", train.beta1));
    refuse("train.beta2", train.beta2 != usual.beta2, fmt::format("{}", train.beta2));
    refuse("train.eps", train.eps != usual.eps, fmt::format("{}", train.eps));
    if (train.nesterov && train.momentum == 0 && are_good(draft, {"train.nesterov", "train.momentum"}))
      draft.report("train.nesterov", "train.nesterov = true without a momentum",
                   "set train.momentum above 0, or leave train.nesterov out");
  } else {
    refuse("train.momentum", train.momentum != usual.momentum, fmt::format("{}", train.momentum));
    refuse("train.nesterov", train.nesterov, "true");
  }
}

std::unique_ptr<Optimizer> make_optimizer(Executor& executor, const Config& config) try {
  const Config::Train& train = config.train;
  std::vector<ParameterGroup> groups;
  for (const std::string& entry : train.groups) groups.push_back(parse_group(entry));
  const auto decay = static_cast<float>(train.weight_decay), clip = static_cast<float>(train.clip);
  if (train.optimizer == "sgd") {
    return std::make_unique<Sgd>(executor, SgdConfig{.momentum = static_cast<float>(train.momentum),
                                                     .nesterov = train.nesterov,
                                                     .weight_decay = decay,
                                                     .clip = clip,
                                                     .order_free = train.deterministic,
                                                     .groups = std::move(groups)});
  }
  return std::make_unique<AdamW>(executor, AdamWConfig{.beta1 = static_cast<float>(train.beta1),
                                                       .beta2 = static_cast<float>(train.beta2),
                                                       .eps = static_cast<float>(train.eps),
                                                       .weight_decay = decay,
                                                       .clip = clip,
                                                       .order_free = train.deterministic,
                                                       .groups = std::move(groups)});
} catch (const UsageError& error) {  // all but the names of parameters is known to be right
  throw Error(ExitCode::config, "train.groups: " + error.what_happened(), {}, error.what_to_do());
}

}  // namespace zs
