#pragma once

#include "runtime/shard/execute/flat_parameter.h"
#include "runtime/shard/offload/host_link.h"
#include "runtime/tensor/context.h"

namespace zs {

/// The way of gradients from a unit's full buffer to the f32 gradient of the master shard. Owned by an Executor; one
/// host thread uses it. On return from every function: enqueued, not done.
///
/// The first step, on the reduce stream, reduce-scatters a micro-batch's gradient over the axes `reduced` and adds it
/// to what earlier micro-batches left. Where those are the master's axes, that is all. Else the sum becomes the
/// master's gradient in a second step, as a rule once an optimizer step: a reduce-scatter over the master's other axes,
/// an all-reduce over replicas, or, where the sum was cut finer than the master so that all ranks are folded in order,
/// an all-gather. It has a stream of its own, `finish`, and so runs beside the first step of the next unit; the sums of
/// two units are alive for that.
class GradReducer {
 public:
  GradReducer(Context& context, Pool& pool, HostLink& link) : context_(context), pool_(pool), link_(link) {}

  void begin_gradient(FlatParameter& unit);
  /// Buffer that gradients are accumulated in: of one rank, the first micro-batch's is the master's gradient itself.
  Buffer full_buffer(const FlatParameter& unit) const {
    return unit.full_grad ? unit.full_grad.buffer(unit.grad_dtype, unit.layout->full_elems()) : unit.grad_buffer();
  }
  void reduce(FlatParameter& unit);
  void finish(FlatParameter& unit);
  void release_gradient(FlatParameter& unit);
  /// Accumulating gradients are parked on the host between micro-batches (Action): the full gradient, and what was
  /// summed.
  void park_accumulated(FlatParameter& unit);
  void reload_accumulated(FlatParameter& unit);
  void resume_accumulated(FlatParameter& unit);
  void park_sum(FlatParameter& unit);
  void reload_sum(FlatParameter& unit);
  /// Gathers whole parameters' gradients after the last reduction of a step: every rank gets the parts that the others
  /// have.
  void gather_whole(FlatParameter& unit);

  /// Gradients that the host keeps: `bring_gradient` has the master's on the device for `stream`, with what was summed
  /// so far; `park_gradient` frees it there, and the host has it as it was at `written`. Where the host keeps none,
  /// neither moves anything; `bring_gradient` gives a transient gradient its memory.
  void bring_gradient(FlatParameter& unit, Stream& stream);
  void park_gradient(FlatParameter& unit, const Event& written);

  /// Compute waits for every reduction so far.
  void wait_reductions();
  /// The next reduction of the unit starts a new sum.
  void clear(FlatParameter& unit);

 private:
  static std::int64_t sum_elems(const FlatParameter& unit) {
    return unit.layout->full_elems() / unit.groups().reduce->size();
  }
  static Buffer sum_buffer(const FlatParameter& unit) { return unit.sum.buffer(DType::f32, sum_elems(unit)); }
  void zero(Stream& stream, const char* name, const std::vector<Buffer>& buffers);
  /// Communicator::reduce_scatter of the unit's full gradient, or what takes its place.
  void reduce_scatter(const FlatParameter& unit, const Buffer& out, ReduceInto into);
  /// Casts, on compute, what was accumulated in f32 to what the reduction carries.
  void cast_gradient(FlatParameter& unit);
  /// Copies, on compute, the full gradient, view after view, to its bucket.
  void interleave(FlatParameter& unit);
  void replace_full(FlatParameter& unit, Memory memory);
  void add_to_grad(FlatParameter& unit);
  /// True if the full gradient lies in memory that is there anyway.
  static bool stays(const FlatParameter& unit) { return !unit.is_parked_full && !unit.host_grad; }
  static Buffer parked_buffer(const FlatParameter& unit);
  void drop_parked(FlatParameter& unit);
  void release_finished_sum();
  Stream& reduction() { return context_.device().stream(StreamRole::reduce); }
  Stream& finishing() { return context_.device().stream(StreamRole::finish); }

  Context& context_;
  Pool& pool_;
  HostLink& link_;
  Memory finished_sum_;  // sum of the unit that was finished last; last_finish_ is its last use
  Event last_reduction_, last_finish_;
};

}  // namespace zs
