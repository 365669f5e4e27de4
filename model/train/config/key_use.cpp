#include "model/train/config/key_use.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "model/train/config/config.h"
#include "model/train/config/config_schema.h"

namespace zs {
namespace {

const std::vector<KeyUse>& all_uses() {
  // A model that is there takes no step, writes no checkpoint, and leaves nothing in a run's folder.
  static const std::vector<std::string_view> of_steps = {"name",
                                                         "checkpoint.",
                                                         "run.",
                                                         "lora.export",
                                                         "tensor.",
                                                         "train.steps",
                                                         "train.epochs",
                                                         "train.global_batch",
                                                         "train.lr",
                                                         "train.min_lr_ratio",
                                                         "train.warmup",
                                                         "train.schedule",
                                                         "train.decay",
                                                         "train.clip",
                                                         "train.optimizer",
                                                         "train.weight_decay",
                                                         "train.beta1",
                                                         "train.beta2",
                                                         "train.eps",
                                                         "train.momentum",
                                                         "train.nesterov",
                                                         "train.muon",
                                                         "train.average",
                                                         "train.groups",
                                                         "train.recompute",
                                                         "train.loss",
                                                         "train.time_limit",
                                                         "train.patience"};
  static const std::vector<KeyUse> uses = {
      {"evaluate", {""}, of_steps},
      {"sample", {""}, of_steps},
      {"export of a configuration", {"name", "run.dir", "model.", "lora."}, {"lora.export"}},
      {"export of a model's folder", {"lora."}, {"lora.export"}},
      {"export of a run or a checkpoint", {}},
  };
  return uses;
}

bool is_among(std::string_view key, const std::vector<std::string_view>& names) {
  return std::any_of(names.begin(), names.end(), [&](std::string_view name) {
    return name.empty() || name == key || (name.ends_with('.') && key.starts_with(name));
  });
}

}  // namespace

bool KeyUse::reads(std::string_view key) const { return is_among(key, read) && !is_among(key, unread); }

const KeyUse& key_use(std::string_view command) {
  const auto& uses = all_uses();
  const auto found = std::find_if(uses.begin(), uses.end(), [&](const KeyUse& use) { return use.command == command; });
  ZS_CHECK(found != uses.end(), "no keys are known of {}", command);
  return *found;
}

std::string unread_keys(const KeyUse& use, const std::vector<std::string>& overrides) {
  std::vector<std::string> unread;
  if (use.read.empty()) check_overrides(overrides);
  for (const std::string& text : overrides) {
    const std::string key = overridden_key(text);
    if (find_config_key(key) == nullptr || use.reads(key)) continue;
    if (std::find(unread.begin(), unread.end(), key) == unread.end()) unread.push_back(key);
  }
  if (unread.empty()) return "";
  if (use.read.empty())
    throw Error(ExitCode::usage,
                fmt::format("{} reads no configuration, and --set gives it {}", use.command, fmt::join(unread, ", ")),
                "command line", "leave --set out");
  return fmt::format("--set of {} has no effect on {}", fmt::join(unread, ", "), use.command);
}

}  // namespace zs
