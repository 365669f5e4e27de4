#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/train/config/config_resolve.h"
#include "runtime/shard/optimizers/optimizer.h"

namespace zs {

/// An optimizer by the name that users give. Everything that differs between optimizers is a member here, so that a
/// name is compared nowhere else. Immutable, and there for ever.
struct OptimizerKind {
  std::string_view name;     ///< the value of train.optimizer: "adamw"
  std::string_view summary;  ///< for the documentation of train.optimizer
  /// Keys of train.* that not every optimizer has, and this one has: "train.beta1".
  std::vector<std::string_view> keys;
  /// Numbers of f32 that it keeps for a parameter's element, before any compression.
  int (*moments)(const Config& config);
  bool updates_on_host = false;  ///< offload.update = "host" goes with it
  bool takes_whole = false;      ///< takes parameters as a whole: not with experts.parallel
  bool trains_average = false;   ///< the weights for use are its own average: not with offload and train.average
  std::unique_ptr<Optimizer> (*make)(Executor& executor, const Config& config);
  /// Gives keys that nobody has given defaults of its own; null: there are none.
  void (*fill)(ConfigDraft& draft) = nullptr;
  /// Reports keys that do not go together; null: all do.
  void (*check)(ConfigDraft& draft) = nullptr;

  bool has(std::string_view key) const;
};

/// All of them. The first that has a key is the one that messages name for it.
std::span<const OptimizerKind> optimizer_kinds();
/// Null where there is none.
const OptimizerKind* find_optimizer_kind(std::string_view name);
/// The kind of a configuration that has been checked.
const OptimizerKind& optimizer_kind(const Config& config);

/// "adamw|lion|...", as a key's choices are written.
std::string optimizer_choices();

}  // namespace zs
