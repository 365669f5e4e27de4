#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "model/nn/language_model.h"
#include "model/train/session/preference_loss.h"
#include "runtime/device/allocator.h"
#include "runtime/shard/execute/executor.h"
#include "runtime/shard/runtime/sharded_runtime.h"

namespace zs {

/// Copies a micro-batch's loss, or another number of it, to a slot of f32 of the step's.
void store_loss(Context& context, const Tensor& value, const Buffer& slot);

/// Means over the pairs of a step: rewards, beta (log p - log p of the reference), and how often the chosen sequence's
/// is above.
struct PreferenceNumbers {
  float chosen = 0, rejected = 0, accuracy = 0;
};

/// Micro-batch of pairs: sequences 2 i and 2 i + 1 are one.
struct PairBatch {
  Tensor inputs, targets, counted;  ///< (B, T); counted: 1 for a target that counts, else 0
  Documents documents;
  LossOptions options;  ///< but for weights

  template <class Batch>
  PairBatch(const Batch& batch, std::int64_t chunk)
      : inputs(batch.inputs),
        targets(batch.targets),
        counted(batch.weights),
        documents(batch.documents),
        options{.seed = batch.seed, .chunk = chunk, .ignored = kIgnoredTarget} {}
};

/// Part of a session that is about pairs: what the reference, the model without its adapters, makes of them, their loss
/// and its numbers. The host thread of the session, which owns it, uses it.
class PairTraining {
 public:
  /// `losses`: f32 (slots), of the micro-batches of this rank, in a step or a validation; `shares`: parts that data is
  /// in.
  PairTraining(Context& context, const Config& config, const Buffer& losses, std::int64_t slots, std::int64_t shares);

  bool has_reference() const { return options_.loss != "simpo"; }
  /// Enqueues the reference's forward of the next micro-batch. Nothing where there is none.
  void add_reference(LanguageModel& model, const PairBatch& batch);
  /// Sets the same of all micro-batches of a step, in place of those before: each is a micro-batch of an evaluation.
  void add_references(ShardedRuntime& runtime, LanguageModel& model, std::size_t micro_batches,
                      const std::function<PairBatch(std::size_t)>& batch);
  /// Drops what the reference has made.
  void clear_references() { references_.clear(); }
  /// The loss that backward takes, whose value means nothing, of micro-batch `slot`, whose reference was added as
  /// number `slot`, too; the pairs' own goes into that slot of the losses.
  Tensor loss(LanguageModel& model, const PairBatch& batch, std::int64_t slot);
  void gather(Executor& executor);
  /// Waits for the device: those of so many micro-batches of all ranks.
  PreferenceNumbers numbers(std::int64_t micro_batches) const;

 private:
  static constexpr std::int64_t kNumbers = 3;

  Context& context_;
  Config::Preference options_;
  Buffer losses_;
  std::int64_t slots_, shares_;
  Memory local_, all_;                           // f32 (kNumbers, slots), f32 (shares, kNumbers, slots)
  std::vector<std::vector<Tensor>> references_;  // sums of the sequences of each micro-batch
};

}  // namespace zs
