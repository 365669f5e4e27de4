#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/base/random.h"
#include "runtime/base/usage_error.h"
#include "runtime/device/allocator.h"
#include "runtime/shard/placement/frozen_format.h"
#include "runtime/shard/placement/gradient_reduction.h"
#include "runtime/shard/placement/mixed_precision.h"
#include "runtime/shard/placement/placement.h"
#include "runtime/shard/placement/unit_layout.h"

namespace zs {

/// One unit's parameters: their layout, their persistent shards and their transient buffers. `master` (f32 weights),
/// `grad` (f32, reduced; none of a frozen unit) and, where parameters run in bf16, `compute_copy` (their bf16 copy,
/// written by the optimizer) have layout->held_elems() elements each: slice `slice` of layout->ranks(), and whole
/// parameters after it. A frozen unit may have `compute_copy` alone, in whatever dtype it runs, or `encoded` alone, its
/// shard in `held_format`. Of a zero-copy unit other ranks read this rank's shard (the one in the runtime dtype;
/// `shared_kept` where there is one): it is written only after what Executor::wait_readers does.
struct FlatParameter {
  FlatParameter(std::string unit_name, std::vector<Parameter*> members, std::shared_ptr<const UnitLayout> unit_layout,
                int master_slice, const MixedPrecisionPolicy& unit_precision, std::uint64_t rounding_seed = 0)
      : name(std::move(unit_name)),
        parameters(std::move(members)),
        layout(std::move(unit_layout)),
        slice(master_slice),
        precision(unit_precision),
        seed(rounding_seed),
        gathered_dtype(unit_precision.param),
        grad_dtype(unit_precision.reduce) {}

  std::string name;
  std::vector<Parameter*> parameters;  // in the order of layout->views()
  std::shared_ptr<const UnitLayout> layout;
  std::shared_ptr<const Placement> placement;    // null only where nothing is communicated
  const GradientReduction* reduction = nullptr;  // null: Communicator::reduce_scatter
  int slice;                                     // index of the master shards that this rank's segments are asked for
  MixedPrecisionPolicy precision;
  std::uint64_t seed;            // seed of random rounding
  DType gathered_dtype;          // dtype of `full` and `kept`: precision.param, but in an evaluation in full precision
  bool gathers_exactly = false;  // such an evaluation runs, which takes no format
  DType grad_dtype;  // dtype of `full_grad`: precision.reduce, but f32 while several micro-batches accumulate

  bool is_frozen = false;  // for good: there is no `grad`, and an optimizer has no state of it
  bool has_master = true;  // else it is frozen, and `compute_copy` or `encoded` is all that is held of it
  const FrozenFormat* held_format = nullptr;  // format of `encoded`; null: there is none
  bool accumulates = false;                   // gradients that begin are those of several micro-batches

  Memory master, grad, compute_copy, encoded;
  Memory host_grad;                 // gradients that the host keeps: `grad` is there only while it is worked on
  bool grad_is_written = false;     // in this step
  bool grad_is_divided = false;     // as far as it is divided after the sum
  bool has_transient_grad = false;  // `grad` is there from a reduction until it is taken, else always

  Buffer shared;       // zero-copy: every rank's shard in the runtime dtype, in memory that they share; else empty
  Memory shared_kept;  // this rank's part of `shared`, where that holds the small group's shards
  // Place of this rank's shard in `shared`, where the shard is a private one, between publications hidden; else empty
  Buffer published;
  bool is_published = false;  // since the last update: the others' shards there are written
  bool is_open = false;       // a view of them is unsharded, or on its way
  bool is_in_scope = false;   // an UnshardScope of it lives

  Memory full, full_grad;  // while unsharded / while accumulating or reducing
  Memory bucket;           // bucket of an interleaved layout, from a gather until compute has waited for it
  // Copies that are gathered while what is held is elsewhere, or of another dtype: the shard (until gathered), and the
  // whole parameters (while unsharded)
  Memory staged, whole;
  Memory host_full_grad, host_sum;  // gradients' full buffer and sum on the host, once it has had them
  std::vector<bool> parked;         // for each parameter: is its gradient written, while the full one is parked
  bool is_parked_full = false;      // in host_full_grad, and not in the memory of `grad`
  Event reloaded;                   // the gradient
  Memory kept, sum;                 // the small group's shard at hand / what reductions summed before their second step
  bool sum_is_written = false;
  Event gathered, reduced;     // the latest
  Event arrived;               // `whole`
  Event kept_ready;            // `kept` was copied on compute
  Event updated;               // in backward or before its first gather, by compute or the host: the next gather waits
  bool is_waited_for = false;  // compute has waited for `gathered`

  /// Format of what is gathered as things stand; null: it travels as it is.
  const GatherFormat* format() const { return gathers_exactly ? nullptr : precision.gather_format; }
  const ShardGroups& groups() const { return placement->groups; }
  std::vector<ShardSegment> segments() const { return layout->segments(slice); }
  std::vector<ShardSegment> held_segments() const { return layout->held_segments(slice); }
  /// Random numbers for rounding the segment's elements, wherever they are held; each part of a partitioned parameter
  /// has its own.
  StochasticRounding rounding_of(const ShardSegment& segment) const {
    const FlatView& view = layout->views()[segment.view];
    return {mix64(seed ^ hash_name("rounding")) ^ hash_name(view.name) ^ static_cast<std::uint64_t>(view.part.index),
            segment.view_offset, segment.run, segment.stride};
  }
  /// True if this rank counts the parameter in sums over all ranks, such as the norm's: each of its elements once.
  bool counts(const FlatView& view) const { return !view.part.is_whole() || !placement || placement->counts_uncut(); }
  /// Masters that the host keeps are on the device only in windows (HostLink).
  bool has_masters_on_host() const {
    return has_master && placement && placement->options.residence.has_masters_on_host;
  }
  /// True if each gather brings the masters from the host: as things stand they are what is gathered.
  bool comes_from_host() const {
    return has_masters_on_host() && gathered_dtype == DType::f32 && layout->held_elems() > 0;
  }
  /// True if each gather casts the weights, as things stand: they are held in another dtype alone.
  bool is_cast_to_gather() const {
    return !has_master && !is_encoded() && gathered_dtype != DType::bf16 && layout->held_elems() > 0;
  }
  /// True if each gather decodes the weights: they are held in a format.
  bool is_encoded() const { return held_format != nullptr; }
  /// True if each gather makes a copy of the shard first.
  bool is_staged() const { return comes_from_host() || is_cast_to_gather() || is_encoded(); }
  Buffer master_buffer() const { return master.buffer(DType::f32, layout->held_elems()); }
  /// The weights in full: the masters, or all that there is. UsageError where that is encoded.
  Buffer weights_buffer() const {
    if (is_encoded())
      throw UsageError(
          fmt::format("the weights of unit {} are held as {}, and not as numbers", name, held_format->name),
          "read them with Executor::read_full, save and load state without what is frozen, or leave "
          "frozen_format out");
    return has_master ? master_buffer() : compute_copy_buffer();
  }
  /// This rank's shard, u8, in held_format.
  Buffer encoded_buffer() const { return encoded.buffer(DType::u8, held_format->bytes(layout->shard_elems())); }
  /// bf16, or empty where parameters run in f32.
  Buffer compute_copy_buffer() const {
    return compute_copy ? compute_copy.buffer(DType::bf16, layout->held_elems()) : Buffer{};
  }
  /// Weights that this rank holds, in gathered_dtype but where it is_cast_to_gather().
  Buffer held_param_buffer() const {
    return has_master && gathered_dtype == DType::f32 ? master_buffer() : compute_copy_buffer();
  }
  /// Buffer that is gathered.
  Buffer param_buffer() const { return held_param_buffer().slice(0, layout->gathered_shard_elems()); }
  /// Gradient shard where it is between micro-batches: on the host where it keeps gradients, see HostLink.
  Buffer kept_grad_buffer() const { return (host_grad ? host_grad : grad).buffer(DType::f32, layout->held_elems()); }
  Buffer held_grad_buffer() const { return grad.buffer(DType::f32, layout->held_elems()); }
  /// Buffer that gradients are reduced to: this rank's segments.
  Buffer grad_buffer() const { return held_grad_buffer().slice(0, layout->shard_elems()); }
  /// Shard of a zero-copy unit that the others read of this rank.
  Buffer shared_shard() const {
    return shared_kept ? shared_kept.buffer(shared.dtype, shared_kept.bytes() / size_of(shared.dtype)) : param_buffer();
  }
  /// View of a whole parameter in what is held: masters, gradients or their like.
  Buffer whole_view(const Buffer& held, const FlatView& view) const {
    return held.slice(layout->held_offset(view), view.numel);
  }
  /// True if the unit's shards lie in memory that the ranks share.
  bool is_zero_copy() const { return !shared.empty(); }
  /// As things stand nothing is copied to gather it: the unsharded parameters are a view of everybody's shards.
  bool is_view() const {
    return is_zero_copy() && gathered_dtype == shared.dtype && format() == precision.gather_format;
  }
  /// The full gradient is not one that compute can add to, see Action.
  bool is_parked() const { return !parked.empty(); }
  /// No other rank has a part of it.
  bool is_local() const { return layout->ranks() == 1 || layout->gathered_elems() == 0; }
  /// True if nothing is gathered: the shards are the parameters, where they lie.
  bool is_never_gathered() const { return is_local() && !is_staged(); }
  /// Or on its way, or kept for a gather.
  bool is_unsharded() const { return full || whole || kept || is_open; }
};

}  // namespace zs
