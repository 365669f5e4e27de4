#pragma once

#include "kernels/kernels.h"
#include "runtime/shard/execute/flat_parameter.h"

/// Between a unit's bucket, which lies shard after shard, and a buffer in which each of its parameters is one view:
/// copies that an interleaved layout needs around its collectives. On return: enqueued on `stream`, not done.
namespace zs {

/// The shards of `first` and those after it, each so many elements from its begin.
struct BucketPart {
  int first, shards;
  std::int64_t shard_elems;  ///< layout.gathered_shard_elems() without the parts of whole parameters,
                             ///< layout.shard_elems() with them
};

/// Every view that is not whole := its rows in `bucket` (gathered_elems).
void copy_out(Stream& stream, const KernelTable& kernels, const FlatParameter& unit, const Buffer& bucket,
              const Buffer& full);
/// `bucket` := these shards of the views; padding is zeroed.
void copy_in(Stream& stream, const KernelTable& kernels, const FlatParameter& unit, const BucketPart& part,
             const Buffer& full, const Buffer& bucket);

}  // namespace zs
