#include "kernels/cuda/device.h"

namespace zs::cuda {
namespace {

/// Where in x the element is that y has at `at`.
__device__ std::int64_t place_in_x(const LinesArgs& args, std::int64_t at) {
  const std::int64_t e = at % args.inner, i = at / args.inner % args.count, outer = at / args.inner / args.count;
  const std::int64_t line = checked_index(args.each_its_own ? args.ids[at] : args.ids[i], args.lines);
  return (outer * args.lines + line) * args.inner + e;
}

}  // namespace

extern "C" __global__ void zs_take_lines(const LinesArgs args) {
  const std::int64_t at = global_thread();
  if (at >= args.outer * args.count * args.inner) return;
  const std::int64_t from = place_in_x(args, at);
  if (args.elem_bytes == 4)
    static_cast<std::uint32_t*>(args.y)[at] = static_cast<const std::uint32_t*>(args.x)[from];
  else
    static_cast<std::uint16_t*>(args.y)[at] = static_cast<const std::uint16_t*>(args.x)[from];
}

/// A column of the middle dim for each thread, which adds in order.
extern "C" __global__ void zs_add_lines(const LinesArgs args) {
  const std::int64_t column = global_thread();
  if (column >= args.outer * args.inner) return;
  const std::int64_t outer = column / args.inner, e = column % args.inner;
  for (std::int64_t i = 0; i < args.count; ++i) {
    const std::int64_t at = (outer * args.count + i) * args.inner + e;
    const float value =
        args.is_y_bf16 ? to_float(static_cast<const Bf16*>(args.y)[at]) : static_cast<const float*>(args.y)[at];
    static_cast<float*>(args.x)[place_in_x(args, at)] += value;
  }
}

}  // namespace zs::cuda
