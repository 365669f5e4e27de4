#include <algorithm>
#include <cstddef>
#include <memory>

#include "kernels/checks.h"
#include "kernels/cuda/launch.h"
#include "kernels/families.h"

namespace zs::cuda {
namespace {

/// Facts about the elements that are known before they are reduced: see ReduceArgs.
struct Known {
  const std::int32_t* exponent = nullptr;
  int shift = 0;
  float power = 0;
};

/// The ranges of one launch, as many of [next, end) as it takes: next moves past them.
ReduceArgs reduce_args(ExecContext& ctx, Reduction reduction, const Known& known, const Buffer*& next,
                       const Buffer* end) {
  const Buffer* const last = next + std::min<std::ptrdiff_t>(end - next, kReduceRanges);
  std::int64_t elems = 0;
  for (const Buffer* part = next; part != last; ++part) elems += part->elems;
  const std::int64_t even = (elems + kReduceBlocks - 1) / kReduceBlocks;
  ReduceArgs args{.ranges = {},
                  .count = 0,
                  .chunk = std::max(kReduceChunk, (even + kReduceChunk - 1) / kReduceChunk * kReduceChunk),
                  .parts = ctx.workspace((kReduceBlocks + kReduceRanges) * size_of(DType::f64)),
                  .exponent = known.exponent,
                  .shift = known.shift,
                  .reduction = reduction,
                  .power = known.power};
  int blocks = 0;
  for (; next != last; ++next) {
    if (next->empty()) continue;
    args.ranges[args.count++] = {elements_of(*next), next->elems, blocks, next->dtype == DType::bf16,
                                 are_aligned(next->data)};
    blocks += static_cast<int>((next->elems + args.chunk - 1) / args.chunk);
  }
  return args;
}

/// Two launches for some dozens of parts: blocks leave theirs in the workspace, one block adds them up in order.
void reduce(ExecContext& ctx, Reduction reduction, const Buffer& out, const SumParts& in, float factor,
            const Known& known) {
  const Buffer *next = std::to_address(in.begin()), *const end = std::to_address(in.end());
  do {  // once where there is nothing, since a sum is written, too
    const ReduceArgs args = reduce_args(ctx, reduction, known, next, end);
    const ReduceRange last = args.count == 0 ? ReduceRange{} : args.ranges[args.count - 1];
    const std::int64_t blocks = last.first_block + (last.elems + args.chunk - 1) / args.chunk;
    launch(ctx, "zs_reduce", blocks, kThreads, &args);
    const FinishArgs finish{.parts = args.parts,
                            .count = static_cast<int>(blocks),
                            .out = out.data,
                            .exponent = known.exponent,
                            .factor = factor,
                            .reduction = reduction};
    launch(ctx, "zs_finish_reduction", 1, kThreads, &finish);
  } while (next != end);
}

void sum(ExecContext& ctx, Buffer out, Buffer in, float factor) {
  checks::scalar<float>("out", out);
  floats_of(in);
  reduce(ctx, Reduction::sum, out, in, factor, {});
}

void squared_norm(ExecContext& ctx, Buffer out, const SumParts& in) {
  checks::scalar<double>("out", out);
  reduce(ctx, Reduction::squares, out, in, 1.0f, {});
}

void max_exponent(ExecContext& ctx, Buffer out, const SumParts& in) {
  checks::scalar<std::int32_t>("out", out);
  reduce(ctx, Reduction::max_magnitude, out, in, 1.0f, {});
}

void fixed_point_squares(ExecContext& ctx, Buffer out, const SumParts& in, Buffer exponent, int shift) {
  checks::fixed_point_shift(shift);
  checks::scalar<std::int64_t>("out", out);
  reduce(ctx, Reduction::fixed_point, out, in, 1.0f, {checks::scalar<std::int32_t>("exponent", exponent), shift});
}

void max_magnitude(ExecContext& ctx, Buffer out, const SumParts& in) {
  checks::scalar<std::int32_t>("out", out);
  reduce(ctx, Reduction::magnitude_bits, out, in, 1.0f, {});
}

void power_sum(ExecContext& ctx, Buffer out, const SumParts& in, Buffer largest, float power) {
  ZS_CHECK(!checks::is_max_norm(power), "a sum of powers of {}", power);
  checks::scalar<double>("out", out);
  reduce(ctx, Reduction::powers, out, in, 1.0f,
         {.exponent = checks::scalar<std::int32_t>("largest", largest), .power = power});
}

void norm_of_powers(ExecContext& ctx, Buffer out, Buffer largest, float power) {
  checks::is_max_norm(power);
  const NormOfPowersArgs args{.out = checks::scalar<double>("out", out),
                              .largest = checks::scalar<std::int32_t>("largest", largest),
                              .power = power};
  launch(ctx, "zs_norm_of_powers", 1, 1, &args);
}

void clip_gradient(ExecContext& ctx, Buffer grad, Buffer scalars) {
  checks::step_scalars(scalars);
  const ClipGradientArgs args{
      .grad = elements_of(grad), .scalars = static_cast<const StepScalars*>(scalars.data), .elems = grad.elems};
  launch_elems(ctx, typed("zs_clip_gradient", grad.dtype), args.elems, 1, args);
}

void clip_coefficient(ExecContext& ctx, Buffer scalars, Buffer squared_norm, Buffer exponent, int shift, float clip) {
  checks::step_scalars(scalars);
  ClipArgs args{.scalars = static_cast<StepScalars*>(scalars.data), .shift = shift, .clip = clip};
  if (exponent.empty()) {
    args.squared_norm = checks::scalar<double>("squared_norm", squared_norm);
  } else {
    args.squared_norm = checks::scalar<std::int64_t>("squared_norm", squared_norm);
    args.exponent = checks::scalar<std::int32_t>("exponent", exponent);
  }
  launch(ctx, "zs_clip_coefficient", 1, 1, &args);
}

void correct_scalars(ExecContext& ctx, Buffer scalars, Buffer first, Buffer before, const StepCorrection& by) {
  checks::step_scalars(scalars);
  checks::step_scalars(first);
  ZS_CHECK(checks::update_counts(before) == 1, "{} elements of f64 as one count of updates", before.elems);
  const CorrectArgs args{.scalars = static_cast<StepScalars*>(scalars.data),
                         .first = static_cast<const StepScalars*>(first.data),
                         .before = static_cast<const UpdateCount*>(before.data),
                         .by = by};
  launch(ctx, "zs_correct_scalars", 1, 1, &args);
}

void count_updates(ExecContext& ctx, Buffer counts, Buffer scalars) {
  checks::step_scalars(scalars);
  const CountArgs args{.counts = static_cast<UpdateCount*>(counts.data),
                       .scalars = static_cast<const StepScalars*>(scalars.data),
                       .elems = checks::update_counts(counts)};
  launch_elems(ctx, "zs_count_updates", args.elems, 1, args);
}

UpdateRangeArgs range_args(const UpdateRange& range, const UpdateRule& rule) {
  checks::update_range(range, rule);
  const auto floats_or_none = [](const Buffer& buffer) { return buffer.empty() ? nullptr : floats_of(buffer); };
  return {.master = floats_of(range.master),
          .m = floats_or_none(range.m),
          .v = floats_or_none(range.v),
          .copy = static_cast<std::uint16_t*>(elements_or_none(range.copy)),
          .grad = floats_of(range.grad),
          .scalars = static_cast<const StepScalars*>(range.scalars.data),
          .elems = range.master.elems,
          .weight_decay = range.weight_decay,
          .is_aligned = are_aligned(range.master.data, range.m.data, range.v.data, range.grad.data, range.copy.data)};
}

/// Updates as many ranges a launch as its arguments take.
void update(ExecContext& ctx, const OneOrMany<UpdateRange>& ranges, const UpdateRule& rule) {
  constexpr std::int64_t kElemsABlock = std::int64_t{kUpdateElems} * kThreads;
  UpdateArgs args{.ranges = {}, .count = 0, .rule = rule};
  std::int64_t blocks = 0;
  const auto launch_all = [&] {
    launch(ctx, "zs_update", blocks, kThreads, &args);
    args.count = 0;
    blocks = 0;
  };
  for (const UpdateRange& range : ranges) {
    UpdateRangeArgs& next = args.ranges[args.count] = range_args(range, rule);
    if (next.elems == 0) continue;
    const std::int64_t more = (next.elems + kElemsABlock - 1) / kElemsABlock;
    ZS_CHECK(blocks + more <= INT32_MAX, "{} blocks of an update", blocks + more);
    next.first_block = static_cast<int>(blocks);
    blocks += more;
    if (++args.count == kUpdateRanges) launch_all();
  }
  launch_all();
}

}  // namespace

void fill_optimizer(KernelTable& table, KernelNames& names) {
  table.sum = sum;
  table.squared_norm = squared_norm;
  table.max_exponent = max_exponent;
  table.fixed_point_squares = fixed_point_squares;
  table.max_magnitude = max_magnitude;
  table.power_sum = power_sum;
  table.norm_of_powers = norm_of_powers;
  table.clip_coefficient = clip_coefficient;
  table.correct_scalars = correct_scalars;
  table.count_updates = count_updates;
  table.clip_gradient = clip_gradient;
  table.update = update;
  names.insert(names.end(), {"zs_reduce", "zs_finish_reduction", "zs_norm_of_powers", "zs_clip_coefficient",
                             "zs_correct_scalars", "zs_count_updates", "zs_update"});
  add_typed(names, {"zs_clip_gradient"});
}

}  // namespace zs::cuda
