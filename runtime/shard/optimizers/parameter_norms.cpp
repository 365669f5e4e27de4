#include "runtime/shard/optimizers/parameter_norms.h"

#include <bit>
#include <cstddef>
#include <limits>
#include <utility>

#include "runtime/shard/optimizers/grad_norm.h"
#include "runtime/tensor/host_view.h"

namespace zs {

ParameterNorms::ParameterNorms(Executor& executor) : executor_(executor) {
  for (const FlatParameter& unit : executor.units()) {
    first_.push_back(parameters_);
    for (const FlatView& view : unit.layout->views()) {
      shifts_.push_back(fixed_point_shift(view.numel * view.part.count));
      ++parameters_;
    }
  }
  Context& context = executor.context();
  const auto acquire = [&](std::int64_t bytes) { return context.pool().acquire(bytes, context.stream(), "scalars"); };
  norms_ = acquire(2 * parameters_ * size_of(DType::f32));
  exponents_ = acquire(2 * parameters_ * size_of(DType::i32));
  sums_ = acquire(2 * parameters_ * size_of(DType::i64));
  scalars_ = acquire(sizeof(StepScalars));
}

/// Each element once among all ranks, as GradNorm counts them.
std::vector<ParameterNorms::Part> ParameterNorms::parts(const IsUpdated& is_updated) const {
  std::vector<Part> parts;
  for (std::size_t unit = 0; unit < executor_.units().size(); ++unit) {
    const FlatParameter& flat = executor_.units()[unit];
    if (!flat.grad_is_written || !executor_.counts_in_norm(flat)) continue;
    for (const ShardSegment& segment : flat.segments()) {
      const FlatView& view = flat.layout->views()[segment.view];
      if (!is_updated(unit, segment.view) || !flat.counts(view)) continue;
      // Every rank holds all of a whole parameter, behind its shard, and counts its part of it there
      const std::int64_t offset =
          view.is_whole ? flat.layout->held_offset(view) + segment.view_offset : segment.shard_offset;
      const std::int64_t norm = 2 * place(unit, segment.view);
      parts.push_back({flat.master_buffer().slice(offset, segment.count), norm});
      parts.push_back({flat.held_grad_buffer().slice(offset, segment.count), norm + 1});
    }
  }
  return parts;
}

/// Calls `work` with a null pointer, to begin, and with each part.
void ParameterNorms::launch_parts(const char* name, std::vector<Part> parts, std::vector<Buffer> reads,
                                  const Buffer& out, std::function<void(ExecContext&, const Part*)> work) const {
  for (const Part& part : parts) reads.push_back(part.elements);
  executor_.context().launch({name, std::move(reads), {out}},
                             [parts = std::move(parts), work = std::move(work)](ExecContext& exec) {
                               work(exec, nullptr);
                               for (const Part& part : parts) work(exec, &part);
                             });
}

void ParameterNorms::measure(const IsUpdated& is_updated) {
  const Context& context = executor_.context();
  const KernelTable& kernels = context.kernels();
  const Buffer most = exponents(), total = sums();
  const std::vector<Part> counted = parts(is_updated);
  launch_parts("parameter_exponents", counted, {}, most, [&kernels, most](ExecContext& exec, const Part* part) {
    constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
    if (part == nullptr) return fill_words(exec, most, std::bit_cast<std::uint32_t>(kLeast));
    kernels.max_exponent(exec, most.slice(part->norm, 1), {part->elements});
  });
  executor_.norm_comm().all_reduce(context.stream(), "parameter_exponents", most, ReduceOp::max);
  launch_parts("parameter_squares", counted, {most}, total,
               [&kernels, most, total, shifts = shifts_](ExecContext& exec, const Part* part) {
                 if (part == nullptr) return kernels.zero(exec, total);
                 kernels.fixed_point_squares(exec, total.slice(part->norm, 1), {part->elements},
                                             most.slice(part->norm, 1),
                                             shifts[static_cast<std::size_t>(part->norm / 2)]);
               });
  executor_.norm_comm().all_reduce(context.stream(), "parameter_norms", total, ReduceOp::sum);
  const Buffer out = all(), scalars = scalars_.buffer(DType::f32, sizeof(StepScalars) / sizeof(float));
  context.launch({"parameter_norms", {most, total, scalars}, {out, scalars}},
                 [&kernels, most, total, out, scalars, shifts = shifts_](ExecContext& exec) {
                   const Buffer norm = scalars.slice(offsetof(StepScalars, grad_norm) / sizeof(float), 1);
                   for (std::int64_t i = 0; i < out.elems; ++i) {
                     kernels.clip_coefficient(exec, scalars, total.slice(i, 1), most.slice(i, 1),
                                              shifts[static_cast<std::size_t>(i / 2)], 0);
                     kernels.copy(exec, out.slice(i, 1), norm);
                   }
                 });
}

}  // namespace zs
