#include "kernels/checks.h"
#include "kernels/cuda/launch.h"
#include "kernels/families.h"

namespace zs::cuda {
namespace {

LinesArgs lines_args(const Buffer& x, const Buffer& y, const Buffer& ids, const LineDims& dims) {
  checks::lines(x, y, ids, dims);
  ZS_CHECK(ids.device == DeviceKind::cuda, "a CUDA kernel got a buffer of device {}", name_of(ids.device));
  return {.x = x.data,
          .y = y.data,
          .ids = ids.as<std::int32_t>(),
          .outer = dims.outer,
          .lines = dims.lines,
          .count = dims.count,
          .inner = dims.inner,
          .each_its_own = dims.each_its_own};
}

void take_lines(ExecContext& ctx, Buffer y, Buffer x, Buffer ids, const LineDims& dims) {
  checks::same_dtype(y, x);
  const LinesArgs args = lines_args(x, y, ids, dims);
  launch_elems(ctx, typed("zs_take_lines", size_of(y.dtype) == 4 ? DType::f32 : DType::bf16), y.elems, 1, args);
}

void add_lines(ExecContext& ctx, Buffer x, Buffer y, Buffer ids, const LineDims& dims) {
  const LinesArgs args = lines_args(x, y, ids, dims);
  floats_of(x);
  elements_of(y);
  cuda_kernels().zero(ctx, x);
  launch_elems(ctx, typed("zs_add_lines", y.dtype), dims.outer * dims.inner, 1, args);
}

}  // namespace

void fill_lines(KernelTable& table, KernelNames& names) {
  table.take_lines = take_lines;
  table.add_lines = add_lines;
  add_typed(names, {"zs_take_lines", "zs_add_lines"});
}

}  // namespace zs::cuda
