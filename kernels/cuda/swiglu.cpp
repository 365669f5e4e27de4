#include "kernels/checks.h"
#include "kernels/cuda/launch.h"
#include "kernels/families.h"

namespace zs::cuda {
namespace {

void swiglu_forward(ExecContext& ctx, Buffer y, Buffer x, std::int64_t width) {
  const SwigluArgs args{.y = data_of(y),
                        .x = data_of(x),
                        .rows = {checks::swiglu(y, x, width), width},
                        .is_aligned = are_whole_packs(width, y.data, x.data)};
  launch_elems(ctx, "zs_swiglu_forward", args.rows.count * packs_of(width), 1, args);
}

void swiglu_backward(ExecContext& ctx, Buffer dx, Buffer dy, Buffer x, std::int64_t width) {
  checks::same_as("dx", dx, x);
  const SwigluArgs args{.x = data_of(x),
                        .dy = data_of(dy),
                        .dx = data_of(dx),
                        .rows = {checks::swiglu(dy, x, width), width},
                        .is_aligned = are_whole_packs(width, dx.data, dy.data, x.data)};
  launch_elems(ctx, "zs_swiglu_backward", args.rows.count * packs_of(width), 1, args);
}

}  // namespace

void fill_swiglu(KernelTable& table, KernelNames& names) {
  table.swiglu_forward = swiglu_forward;
  table.swiglu_backward = swiglu_backward;
  names.insert(names.end(), {"zs_swiglu_forward", "zs_swiglu_backward"});
}

}  // namespace zs::cuda
