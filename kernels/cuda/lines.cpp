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
          .elem_bytes = static_cast<int>(size_of(x.dtype)),
          .each_its_own = dims.each_its_own,
          .is_y_bf16 = y.dtype == DType::bf16};
}

void take_lines(ExecContext& ctx, Buffer y, Buffer x, Buffer ids, const LineDims& dims) {
  checks::same_dtype(y, x);
  const LinesArgs args = lines_args(x, y, ids, dims);
  launch_elems(ctx, "zs_take_lines", y.elems, 1, args);
}

void add_lines(ExecContext& ctx, Buffer x, Buffer y, Buffer ids, const LineDims& dims) {
  const LinesArgs args = lines_args(x, y, ids, dims);
  floats_of(x);
  data_of(y);
  cuda_kernels().zero(ctx, x);
  launch_elems(ctx, "zs_add_lines", dims.outer * dims.inner, 1, args);
}

}  // namespace

void fill_lines(KernelTable& table, KernelNames& names) {
  table.take_lines = take_lines;
  table.add_lines = add_lines;
  names.insert(names.end(), {"zs_take_lines", "zs_add_lines"});
}

}  // namespace zs::cuda
