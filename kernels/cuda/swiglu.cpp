#include "kernels/checks.h"
#include "kernels/cuda/launch.h"
#include "kernels/families.h"

namespace zs::cuda {
namespace {

void swiglu_forward(ExecContext& ctx, Buffer y, Buffer x, std::int64_t width) {
  const SwigluArgs args{.y = elements_of(y),
                        .x = elements_of(x),
                        .rows = {checks::swiglu(y, x, width), width},
                        .is_aligned = are_whole_packs(width, y.data, x.data)};
  launch_elems(ctx, typed("zs_swiglu_forward", x.dtype), args.rows.count * packs_of(width), 1, args);
}

void swiglu_backward(ExecContext& ctx, Buffer dx, Buffer dy, Buffer x, std::int64_t width) {
  checks::same_as("dx", dx, x);
  const SwigluArgs args{.dx = elements_of(dx),
                        .x = elements_of(x),
                        .dy = elements_of(dy),
                        .rows = {checks::swiglu(dy, x, width), width},
                        .is_aligned = are_whole_packs(width, dx.data, dy.data, x.data)};
  launch_elems(ctx, typed("zs_swiglu_backward", x.dtype), args.rows.count * packs_of(width), 1, args);
}

}  // namespace

void fill_swiglu(KernelTable& table, KernelNames& names) {
  table.swiglu_forward = swiglu_forward;
  table.swiglu_backward = swiglu_backward;
  add_typed(names, {"zs_swiglu_forward", "zs_swiglu_backward"});
}

}  // namespace zs::cuda
