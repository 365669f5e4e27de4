#include "kernels/cuda/launch.h"
#include "kernels/families.h"
#include "kernels/general_checks.h"

namespace zs::cuda {
namespace {

StridedDims dims_of(const Shape& shape, const std::array<std::int64_t, Shape::kMaxDims>& strides) {
  StridedDims dims{.dims = shape.rank(), .sizes = {}, .strides = {}, .elems = shape.numel()};
  for (int d = 0; d < shape.rank(); ++d) {
    dims.sizes[d] = shape[d];
    dims.strides[d] = strides[static_cast<std::size_t>(d)];
  }
  return dims;
}

void reduce(ExecContext& ctx, const Reduce& reduce) {
  if (reduce.kept.numel() == 0) return;
  checks::reduce(reduce);
  ZS_CHECK(reduce.out.device == DeviceKind::cuda, "a CUDA kernel got a buffer of device {}",
           name_of(reduce.out.device));
  const ReduceDimsArgs args{.op = reduce.op,
                            .out = reduce.out.data,
                            .in = elements_of(reduce.in),
                            .kept = dims_of(reduce.kept, reduce.kept_strides),
                            .reduced = dims_of(reduce.reduced, reduce.reduced_strides),
                            .factor = reduce.factor,
                            .is_out_bf16 = reduce.out.dtype == DType::bf16};
  const int inner = args.kept.dims - 1;
  if (args.kept.strides[inner] == 1 && args.kept.sizes[inner] > 1)
    return launch_elems(ctx, typed("zs_reduce_lines", reduce.in.dtype), args.kept.elems, 1, args);
  launch(ctx, typed("zs_reduce_dims", reduce.in.dtype), args.kept.elems, kThreads, &args);
}

}  // namespace

void fill_reduce(KernelTable& table, KernelNames& names) {
  table.reduce = reduce;
  add_typed(names, {"zs_reduce_lines", "zs_reduce_dims"});
}

}  // namespace zs::cuda
