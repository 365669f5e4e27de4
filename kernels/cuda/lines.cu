#include "kernels/cuda/device.h"

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

}  // namespace

/// Kernels for i32, too, as if it were f32: bits are moved.
ZS_KERNEL(zs_take_lines, LinesArgs, take_lines<T>(args))
ZS_KERNEL(zs_add_lines, LinesArgs, add_lines<T>(args))

}  // namespace zs::cuda
