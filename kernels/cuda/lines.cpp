#include "kernels/cuda/launch.h"
#include "kernels/families.h"
#include "kernels/general_checks.h"

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

WholeLinesArgs whole_lines_args(const Buffer& y, const Buffer& x, const LineDims& dims, bool is_backward) {
  checks::whole_lines(y, x, dims);
  ZS_CHECK(x.device == DeviceKind::cuda && y.device == DeviceKind::cuda,
           "a CUDA kernel got buffers of devices {} and {}", name_of(x.device), name_of(y.device));
  return {.x = x.data,
          .y = y.data,
          .kind = kind_of(x.dtype),
          .outer = dims.outer,
          .lines = dims.lines,
          .count = dims.count,
          .inner = dims.inner,
          .is_backward = is_backward};
}

void order_lines(ExecContext& ctx, Buffer ids, Buffer x, const LineDims& dims, bool is_descending) {
  ZS_CHECK(ids.dtype == DType::i32, "ids of {}", name_of(ids.dtype));
  launch_elems(ctx, "zs_order_lines", x.elems, 1, whole_lines_args(ids, x, dims, is_descending));
}

void sum_lines(ExecContext& ctx, Buffer y, Buffer x, const LineDims& dims, bool is_backward) {
  checks::same_dtype(y, x);
  launch_elems(ctx, "zs_sum_lines", dims.outer * dims.inner, 1, whole_lines_args(y, x, dims, is_backward));
}

std::int64_t order_lines_scratch(int, const LineDims&) { return 0; }

}  // namespace

void fill_lines(KernelTable& table, KernelNames& names) {
  table.take_lines = take_lines;
  table.add_lines = add_lines;
  table.order_lines = order_lines;
  table.sum_lines = sum_lines;
  table.scratch.order_lines = order_lines_scratch;
  add_typed(names, {"zs_take_lines", "zs_add_lines"});
  names.insert(names.end(), {"zs_order_lines", "zs_sum_lines"});
}

}  // namespace zs::cuda
