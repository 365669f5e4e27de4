#include "kernels/checks.h"
#include "kernels/cuda/launch.h"
#include "kernels/families.h"

namespace zs::cuda {
namespace {

/// kernel: what its name begins with.
void forward(ExecContext& ctx, const char* kernel, const Buffer& y, const Buffer& x, std::int64_t width) {
  const SwigluArgs args{.y = elements_of(y),
                        .x = elements_of(x),
                        .rows = {checks::gated(y, x, width), width},
                        .is_aligned = are_whole_packs(width, y.data, x.data)};
  launch_elems(ctx, typed(kernel, x.dtype), args.rows.count * packs_of(width), 1, args);
}

void backward(ExecContext& ctx, const char* kernel, const Buffer& dx, const Buffer& dy, const Buffer& x,
              std::int64_t width) {
  checks::same_as("dx", dx, x);
  const SwigluArgs args{.dx = elements_of(dx),
                        .x = elements_of(x),
                        .dy = elements_of(dy),
                        .rows = {checks::gated(dy, x, width), width},
                        .is_aligned = are_whole_packs(width, dx.data, dy.data, x.data)};
  launch_elems(ctx, typed(kernel, x.dtype), args.rows.count * packs_of(width), 1, args);
}

void swiglu_forward(ExecContext& ctx, Buffer y, Buffer x, std::int64_t width) {
  forward(ctx, "zs_swiglu_forward", y, x, width);
}
void swiglu_backward(ExecContext& ctx, Buffer dx, Buffer dy, Buffer x, std::int64_t width) {
  backward(ctx, "zs_swiglu_backward", dx, dy, x, width);
}
void geglu_forward(ExecContext& ctx, Buffer y, Buffer x, std::int64_t width) {
  forward(ctx, "zs_geglu_forward", y, x, width);
}
void geglu_backward(ExecContext& ctx, Buffer dx, Buffer dy, Buffer x, std::int64_t width) {
  backward(ctx, "zs_geglu_backward", dx, dy, x, width);
}

}  // namespace

void fill_swiglu(KernelTable& table, KernelNames& names) {
  table.swiglu_forward = swiglu_forward;
  table.swiglu_backward = swiglu_backward;
  table.geglu_forward = geglu_forward;
  table.geglu_backward = geglu_backward;
  add_typed(names, {"zs_swiglu_forward", "zs_swiglu_backward", "zs_geglu_forward", "zs_geglu_backward"});
}

}  // namespace zs::cuda
