#include "kernels/checks.h"
#include "kernels/cuda/launch.h"
#include "kernels/families.h"

namespace zs::cuda {
namespace {

MapArgs map_args(const Data& out, const Data& a, const Data& b, std::int64_t elems) {
  return {.out = out, .a = a, .b = b, .elems = elems, .is_aligned = are_aligned(out.address, a.address, b.address)};
}

void launch_map(ExecContext& ctx, const char* kernel, const MapArgs& args) {
  launch_elems(ctx, kernel, args.elems, pack_elems(args.out.is_bf16 || args.a.is_bf16 || args.b.is_bf16), args);
}

void cast(ExecContext& ctx, Buffer out, Buffer in) {
  launch_map(ctx, "zs_cast", map_args(data_of(out), data_of(in), kNone, checks::same_elems(out, in)));
}

void add(ExecContext& ctx, Buffer out, Buffer a, Buffer b) {
  const std::int64_t elems = checks::alike(out, a, b);
  launch_map(ctx, "zs_add", map_args(data_of(out), data_of(a), data_of(b), elems));
}

void scale(ExecContext& ctx, Buffer out, Buffer in, float factor) {
  MapArgs args = map_args(data_of(out), data_of(in), kNone, checks::alike(out, in, in));
  args.factor = factor;
  launch_map(ctx, "zs_scale", args);
}

void accumulate(ExecContext& ctx, Buffer out, Buffer in) {
  launch_map(ctx, "zs_accumulate", map_args(data_of(out), data_of(out), data_of(in), checks::same_elems(out, in)));
}

void gelu_forward(ExecContext& ctx, Buffer y, Buffer x, GeluKind kind) {
  MapArgs args = map_args(data_of(y), data_of(x), kNone, checks::alike(y, x, x));
  args.is_erf = kind == GeluKind::erf;
  launch_map(ctx, "zs_gelu_forward", args);
}

void gelu_backward(ExecContext& ctx, Buffer dx, Buffer dy, Buffer x, GeluKind kind) {
  MapArgs args = map_args(data_of(dx), data_of(dy), data_of(x), checks::alike(dx, dy, x));
  args.is_erf = kind == GeluKind::erf;
  launch_map(ctx, "zs_gelu_backward", args);
}

}  // namespace

void fill_elementwise(KernelTable& table, KernelNames& names) {
  table.cast = cast;
  table.add = add;
  table.scale = scale;
  table.accumulate = accumulate;
  table.gelu_forward = gelu_forward;
  table.gelu_backward = gelu_backward;
  names.insert(names.end(), {"zs_cast", "zs_add", "zs_scale", "zs_accumulate", "zs_gelu_forward", "zs_gelu_backward"});
}

}  // namespace zs::cuda
