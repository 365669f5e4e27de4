#pragma once

#include "runtime/shard/sharded_runtime.h"

namespace zs {

/// While it lives, the parameters of one unit are whole, in f32, as the optimizer keeps them: for reading, and for writing by compute work
/// on `Parameter::value()` (which declares that it writes it). Between steps, alike on every rank; one host thread uses it.
///
///     FullParameters full(runtime, unit);
///     context.launch({"edit", {}, {weight.value()}}, ...);
///     full.write_back();
///
/// What is written and not written back is a LostWrite of every rank's next synchronize, where it has not become the weight at once: a
/// rank that holds a parameter whole (ddp, one rank, parameters that are too small to be cut) is given the weight itself.
class FullParameters {
 public:
  /// Collective: enqueued, not done. Error(internal) within a micro-batch, or where the unit is gathered already.
  FullParameters(ShardedRuntime& runtime, int unit);
  /// The unit is sharded again. Unless an exception is under way, what is lost is looked for.
  ~FullParameters() noexcept(false);
  FullParameters(const FullParameters&) = delete;
  FullParameters& operator=(const FullParameters&) = delete;

  /// What compute work enqueued so far has left in the parameters are the weights from now on: of every rank its own part.
  void write_back();

 private:
  ShardedRuntime& runtime_;
  int unit_, exceptions_;
};

}  // namespace zs
