#include "kernels/cuda/device.h"
#include "kernels/cuda/general_args.h"
#include "kernels/order_key.h"

namespace zs::cuda {
namespace {

/// Index of the element in x that y has at `at`.
__device__ std::int64_t place_in_x(const LinesArgs& args, std::int64_t at) {
  const std::int64_t e = at % args.inner, i = at / args.inner % args.count, outer = at / args.inner / args.count;
  const std::int64_t line = checked_index(args.each_its_own ? args.ids[at] : args.ids[i], args.lines);
  return (outer * args.lines + line) * args.inner + e;
}

template <class T>
__device__ void take_lines(const LinesArgs& args) {
  const std::int64_t at = global_thread();
  if (at >= args.outer * args.count * args.inner) return;
  static_cast<T*>(args.y)[at] = static_cast<const T*>(args.x)[place_in_x(args, at)];
}

/// A column of the middle dim for each thread, which adds in order.
template <class T>
__device__ void add_lines(const LinesArgs& args) {
  const std::int64_t column = global_thread();
  if (column >= args.outer * args.inner) return;
  const std::int64_t outer = column / args.inner, e = column % args.inner;
  for (std::int64_t i = 0; i < args.count; ++i) {
    const std::int64_t at = (outer * args.count + i) * args.inner + e;
    static_cast<float*>(args.x)[place_in_x(args, at)] += to_float(static_cast<const T*>(args.y)[at]);
  }
}

/// Comes before another's where the element does, and is the same where they are equal.
__device__ std::uint32_t order_key(const WholeLinesArgs& args, std::int64_t at) {
  if (args.kind == ElementKind::i32) return order_key_of(static_cast<const std::int32_t*>(args.x)[at]);
  if (args.kind == ElementKind::bf16) return order_key_of(to_float(static_cast<const Bf16*>(args.x)[at]));
  return order_key_of(static_cast<const float*>(args.x)[at]);
}

}  // namespace

/// An element for each thread, whose place is the number of those before it.
extern "C" __global__ void zs_order_lines(const WholeLinesArgs args) {
  const std::int64_t at = global_thread();
  if (at >= args.outer * args.lines * args.inner) return;
  const std::int64_t e = at % args.inner, i = at / args.inner % args.lines, outer = at / args.inner / args.lines;
  const std::uint32_t turned = args.is_backward ? ~0u : 0u, key = order_key(args, at) ^ turned;
  std::int64_t place = 0;
  for (std::int64_t j = 0; j < args.lines; ++j) {
    const std::uint32_t other = order_key(args, (outer * args.lines + j) * args.inner + e) ^ turned;
    place += other < key || (other == key && j < i) ? 1 : 0;
  }
  if (place < args.count)
    static_cast<std::int32_t*>(args.y)[(outer * args.count + place) * args.inner + e] = static_cast<std::int32_t>(i);
}

/// A line for each thread, which adds in order.
extern "C" __global__ void zs_sum_lines(const WholeLinesArgs args) {
  const std::int64_t line = global_thread();
  if (line >= args.outer * args.inner) return;
  const std::int64_t first = line / args.inner * args.lines * args.inner + line % args.inner;
  double sum = 0;
  for (std::int64_t i = 0; i < args.lines; ++i) {
    const std::int64_t at = first + (args.is_backward ? args.lines - 1 - i : i) * args.inner;
    if (args.kind == ElementKind::i32) {
      sum += static_cast<const std::int32_t*>(args.x)[at];
      static_cast<std::int32_t*>(args.y)[at] = static_cast<std::int32_t>(static_cast<std::int64_t>(sum));
    } else if (args.kind == ElementKind::bf16) {
      sum += static_cast<double>(to_float(static_cast<const Bf16*>(args.x)[at]));
      static_cast<Bf16*>(args.y)[at] = from_float<Bf16>(static_cast<float>(sum));
    } else {
      sum += static_cast<double>(static_cast<const float*>(args.x)[at]);
      static_cast<float*>(args.y)[at] = static_cast<float>(sum);
    }
  }
}

/// Kernels for i32, too, as if it were f32: bits are moved.
ZS_KERNEL(zs_take_lines, LinesArgs, take_lines<T>(args))
ZS_KERNEL(zs_add_lines, LinesArgs, add_lines<T>(args))

}  // namespace zs::cuda
