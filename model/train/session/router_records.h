#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/nn/language_model.h"
#include "runtime/shard/execute/executor.h"

namespace zs {

/// Load of a mixture of experts by a step's tokens, of all ranks.
struct MixtureLoad {
  std::int64_t layer = 0;
  float most = 1, least = 1;               ///< rows of the expert that has most, and least, in units of an even share
  float entropy = 1;                       ///< entropy of the shares, in units of that of even ones
  std::optional<float> balance_loss = {};  ///< without its coefficient: 1 where loads are even; none: not computed
  bool operator==(const MixtureLoad&) const = default;
};

/// Records of a model's routers in a step: their memory, and what it says at the end. All but `loads` is enqueued on
/// compute; one host thread uses it.
class RouterRecords {
 public:
  /// The model outlives it, and is trained.
  RouterRecords(Context& context, Executor& executor, LanguageModel& model);

  /// Before the step's first micro-batch.
  void clear();
  /// After its last. Collective.
  void sum();
  /// The mixtures' loads, in the order of the layers. Blocks.
  std::vector<MixtureLoad> loads() const;

 private:
  Context& context_;
  Executor& executor_;
  std::vector<Router*> routers_;
  std::vector<std::int64_t> layers_;
  std::int64_t elems_ = 0;
  Memory memory_;  // f32, of one router after the other
};

}  // namespace zs
