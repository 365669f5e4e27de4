#pragma once

#include <string_view>

#include "comm/communicator.h"
#include "kernels/kernels.h"

namespace zs {

/// Replacement for the first step of a gradient's reduction: a reduce-scatter of one's own, compressed, delayed or
/// scaled. Where a scheme has a second step (the all-reduce over replicas of hsdp, the outer groups of nested), that
/// follows as ever. Alike on every rank: they compare its name. Outlives the runtimes that have it.
///
///     struct Halved : zs::GradientReduction {
///       std::string_view name() const override { return "halved"; }
///       void reduce(const Reduced& unit) const override {
///         unit.stream.enqueue({"halve", {unit.full}, {unit.full}}, [unit](zs::ExecContext& exec) {
///           unit.kernels.scale(exec, unit.full, unit.full, 0.5f);
///         });
///         unit.group.reduce_scatter(unit.stream, unit.name, unit.full, unit.shard, unit.into);
///       }
///     };
class GradientReduction {
 public:
  virtual ~GradientReduction() = default;

  struct Reduced {
    Stream& stream;         ///< all work goes there: on return it is enqueued, not done
    std::string_view name;  ///< name of the unit; lives as long as the runtime
    /// MixedPrecisionPolicy::reduce, shard after shard: this rank's whole gradient of the micro-batches since the last
    /// reduction. Nobody needs it afterwards, so it may be written.
    Buffer full;
    Buffer shard;     ///< f32: this rank's part of the sum over the group
    ReduceInto into;  ///< says if the sum is added to what `shard` holds, the sum of earlier micro-batches
    Communicator& group;
    const KernelTable& kernels;
  };
  /// Called by the host once for each reduction of a unit, in the same order on every rank, of one rank too. Padding,
  /// where gradients are zero, must stay zero.
  virtual void reduce(const Reduced& unit) const = 0;
  /// Name in messages between ranks and in error lines.
  virtual std::string_view name() const = 0;
};

}  // namespace zs
