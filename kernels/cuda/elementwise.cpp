#include "kernels/checks.h"
#include "kernels/cuda/launch.h"
#include "kernels/families.h"

namespace zs::cuda {
namespace {

/// b: a, where the kernel has no other operand.
MapArgs map_args(const Buffer& out, const Buffer& a, const Buffer& b, std::int64_t elems) {
  return {.out = elements_of(out),
          .a = elements_of(a),
          .b = elements_of(b),
          .elems = elems,
          .is_aligned = are_aligned(out.data, a.data, b.data)};
}

/// out and in differ in dtype, perhaps.
void launch_pair(ExecContext& ctx, const char* kernel, const Buffer& out, const Buffer& in, const MapArgs& args) {
  const bool has_bf16 = out.dtype == DType::bf16 || in.dtype == DType::bf16;
  launch_elems(ctx, typed(kernel, out.dtype, in.dtype), args.elems, pack_elems(has_bf16), args);
}

void launch_map(ExecContext& ctx, const char* kernel, DType dtype, const MapArgs& args) {
  launch_elems(ctx, typed(kernel, dtype), args.elems, pack_elems(dtype == DType::bf16), args);
}

void cast(ExecContext& ctx, Buffer out, Buffer in) {
  launch_pair(ctx, "zs_cast", out, in, map_args(out, in, in, checks::same_elems(out, in)));
}

void accumulate(ExecContext& ctx, Buffer out, Buffer in) {
  launch_pair(ctx, "zs_accumulate", out, in, map_args(out, out, in, checks::same_elems(out, in)));
}

void add(ExecContext& ctx, Buffer out, Buffer a, Buffer b) {
  launch_map(ctx, "zs_add", out.dtype, map_args(out, a, b, checks::alike(out, a, b)));
}

void scale(ExecContext& ctx, Buffer out, Buffer in, float factor) {
  MapArgs args = map_args(out, in, in, checks::alike(out, in, in));
  args.factor = factor;
  launch_map(ctx, "zs_scale", out.dtype, args);
}

void gelu_forward(ExecContext& ctx, Buffer y, Buffer x, GeluKind kind) {
  MapArgs args = map_args(y, x, x, checks::alike(y, x, x));
  args.is_erf = kind == GeluKind::erf;
  launch_map(ctx, "zs_gelu_forward", y.dtype, args);
}

void gelu_backward(ExecContext& ctx, Buffer dx, Buffer dy, Buffer x, GeluKind kind) {
  MapArgs args = map_args(dx, dy, x, checks::alike(dx, dy, x));
  args.is_erf = kind == GeluKind::erf;
  launch_map(ctx, "zs_gelu_backward", dx.dtype, args);
}

}  // namespace

void fill_elementwise(KernelTable& table, KernelNames& names) {
  table.cast = cast;
  table.add = add;
  table.scale = scale;
  table.accumulate = accumulate;
  table.gelu_forward = gelu_forward;
  table.gelu_backward = gelu_backward;
  add_pairs(names, {"zs_cast", "zs_accumulate"});
  add_typed(names, {"zs_add", "zs_scale", "zs_gelu_forward", "zs_gelu_backward"});
}

}  // namespace zs::cuda
