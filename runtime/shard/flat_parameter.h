#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/device/allocator.h"
#include "runtime/shard/flat_layout.h"

namespace zs {

struct Precision {
  DType param = DType::f32;   ///< runtime parameters and activations
  DType reduce = DType::f32;  ///< full gradient buffers, and what a reduction carries
};

/// One flat parameter: its layout, its persistent shards and its transient buffers. `master` (f32 weights), `grad`
/// (f32, reduced) and, where parameters run in bf16, `narrow` (their bf16 copy, written by the optimizer) hold
/// layout.shard_elems() elements each: slice `slice` of layout.ranks().
struct FlatParameter {
  FlatParameter(std::string unit_name, std::vector<Parameter*> members, FlatLayout flat_layout, int master_slice)
      : name(std::move(unit_name)), parameters(std::move(members)), layout(std::move(flat_layout)), slice(master_slice) {}

  std::string name;
  std::vector<Parameter*> parameters;  // in the order of layout.views()
  FlatLayout layout;
  int slice;  // of the master shards: what this rank's layout.segments() are asked for

  Memory master, grad, narrow;
  bool grad_is_written = false;  // in this step
  bool grad_is_divided = false;  // as far as it is divided after the sum

  Memory full, full_grad;  // while unsharded / while accumulating or reducing
  Memory kept, sum;        // the small group's shard at hand / what reductions summed before their second step
  bool sum_is_written = false;
  Event gathered, reduced;     // the latest
  Event kept_ready;            // `kept` was copied on compute
  bool is_waited_for = false;  // compute has waited for `gathered`

  std::vector<ShardSegment> segments() const { return layout.segments(slice); }
  Buffer master_buffer() const { return master.buffer(DType::f32, layout.shard_elems()); }
  /// bf16, or empty where parameters run in f32.
  Buffer narrow_buffer() const { return narrow ? narrow.buffer(DType::bf16, layout.shard_elems()) : Buffer{}; }
  /// What is gathered.
  Buffer param_buffer() const { return narrow ? narrow_buffer() : master_buffer(); }
  Buffer grad_buffer() const { return grad.buffer(DType::f32, layout.shard_elems()); }
};

}  // namespace zs
