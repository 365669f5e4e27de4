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
/// What is written and not written back is a LostWrite of every rank's next synchronize. What is written back must be alike on every rank,
/// or it is an Error(ranks_disagree) of every rank's next synchronize, which names the parameter: one rank that alone knows the values
/// broadcasts them first. A rank that holds a parameter whole (ddp, one rank, parameters that are too small to be cut) is given the weight
/// itself. Meanwhile a micro-batch, an optimizer's step, a load, and a reshard or another FullParameters of the unit are UsageErrors.
class FullParameters {
 public:
  /// Collective: enqueued, not done. UsageError within a micro-batch, or where the unit is gathered already.
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

/// The weights of every rank become those that rank `root` has or, where it is sharded, gathers; so does the seed, from which weights that
/// nobody has changed yet are drawn anew. The optimizer's moments stay as they are. Collective, between steps; blocks. Memory: one unit's
/// f32 weights.
void broadcast_parameters(ShardedRuntime& runtime, int root = 0);

}  // namespace zs
