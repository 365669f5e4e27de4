#include "model/train/config/config_optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "model/train/config/pattern_entries.h"
#include "runtime/base/usage_error.h"
#include "runtime/shard/optimizers/adamw8bit.h"
#include "runtime/shard/optimizers/lion.h"
#include "runtime/shard/optimizers/muon.h"
#include "runtime/shard/optimizers/sgd.h"

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
void refuse_foreign(ConfigDraft& draft) {
  const Config::Train &train = draft.config.train, usual;
  const auto check = [&](const char* key, bool is_unusual, const auto& value,
                         std::initializer_list<std::string_view> optimizers) {
    if (!is_unusual || std::find(optimizers.begin(), optimizers.end(), train.optimizer) != optimizers.end()) return;
    if (!are_good(draft, {key})) return;
    draft.report(key, fmt::format("{} = {} does not go with train.optimizer \"{}\"", key, value, train.optimizer),
                 fmt::format("leave it out, or use train.optimizer = \"{}\"", *optimizers.begin()));
  };
  check("train.beta1", train.beta1 != usual.beta1, train.beta1, {"adamw", "adamw8bit", "lion", "muon"});
  check("train.beta2", train.beta2 != usual.beta2, train.beta2, {"adamw", "adamw8bit", "lion", "muon"});
  check("train.eps", train.eps != usual.eps, train.eps, {"adamw", "adamw8bit", "muon"});
  check("train.momentum", train.momentum != usual.momentum, train.momentum, {"sgd", "muon"});
  check("train.nesterov", train.nesterov, "true", {"sgd", "muon"});
  check("train.muon", !train.muon.empty(), fmt::format("[\"{}\"]", fmt::join(train.muon, "\", \"")), {"muon"});
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
  Config::Train& train = draft.config.train;
  check_groups(draft);
  if (!are_good(draft, {"train.optimizer"})) return;
  const auto fill = [&](const char* key, const char* optimizer, auto& value, auto usual) {
    if (train.optimizer == optimizer && !draft.is_given(key)) value = usual;
  };
  fill("train.weight_decay", "sgd", train.weight_decay, 0.0);
  fill("train.beta2", "lion", train.beta2, 0.99);
  fill("train.momentum", "muon", train.momentum, 0.95);
  fill("train.nesterov", "muon", train.nesterov, !(draft.is_given("train.momentum") && train.momentum == 0));
  fill("train.muon", "muon", train.muon, std::vector<std::string>{"blocks.*"});
  refuse_foreign(draft);
  const bool has_momentum = train.optimizer == "sgd" || train.optimizer == "muon";
  if (has_momentum && train.nesterov && train.momentum == 0 && are_good(draft, {"train.nesterov", "train.momentum"}))
    draft.report("train.nesterov", "train.nesterov = true without a momentum",
                 "set train.momentum above 0, or leave train.nesterov out");
  if (train.optimizer == "muon" && train.muon.empty() && are_good(draft, {"train.muon"}))
    draft.report("train.muon", "train.muon names no matrix",
                 "name some, such as [\"blocks.*\"], or use train.optimizer = \"adamw\"");
}

std::unique_ptr<Optimizer> make_optimizer(Executor& executor, const Config& config) try {
  const Config::Train& train = config.train;
  const auto beta1 = static_cast<float>(train.beta1), beta2 = static_cast<float>(train.beta2),
             eps = static_cast<float>(train.eps), momentum = static_cast<float>(train.momentum);
  const auto with_shared = [&](auto options) {  // adds the options that all of them have
    options.weight_decay = static_cast<float>(train.weight_decay);
    options.clip = static_cast<float>(train.clip);
    options.order_free = train.deterministic;
    for (const std::string& entry : train.groups) options.groups.push_back(parse_group(entry));
    options.average = static_cast<float>(train.average);
    return options;
  };
  if (train.optimizer == "sgd")
    return std::make_unique<Sgd>(executor, with_shared(SgdConfig{.momentum = momentum, .nesterov = train.nesterov}));
  if (train.optimizer == "lion")
    return std::make_unique<Lion>(executor, with_shared(LionConfig{.beta1 = beta1, .beta2 = beta2}));
  if (train.optimizer == "muon")
    return std::make_unique<Muon>(executor, with_shared(MuonConfig{.momentum = momentum,
                                                                   .nesterov = train.nesterov,
                                                                   .matrices = train.muon,
                                                                   .beta1 = beta1,
                                                                   .beta2 = beta2,
                                                                   .eps = eps}));
  const AdamWConfig adamw = with_shared(AdamWConfig{.beta1 = beta1, .beta2 = beta2, .eps = eps});
  if (train.optimizer == "adamw8bit") return std::make_unique<AdamW8bit>(executor, adamw);
  return std::make_unique<AdamW>(executor, adamw);
} catch (const UsageError& error) {  // all but the names of parameters is known to be right
  const char* const key = error.what_happened().starts_with("Muon: no matrix") ? "train.muon: " : "train.groups: ";
  throw Error(ExitCode::config, key + error.what_happened(), {}, error.what_to_do());
}

}  // namespace zs
