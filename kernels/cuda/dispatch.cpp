#include "kernels/cuda/dispatch.h"

#include <numeric>

#include "kernels/checks.h"
#include "kernels/cuda/launch.h"
#include "runtime/base/int8_blocks.h"
#include "runtime/device/cuda_context.h"

namespace zs::cuda {
namespace {

MapArgs map_args(const Data& out, const Data& a, const Data& b, std::int64_t elems) {
  return {.out = out,
          .a = a,
          .b = b,
          .elems = elems,
          .factor = 1.0f,
          .is_erf = false,
          .is_aligned = are_aligned(out.address, a.address, b.address)};
}

void launch_map(ExecContext& ctx, const char* kernel, const MapArgs& args) {
  launch_elems(ctx, kernel, args.elems, pack_elems(args.out.is_bf16 || args.a.is_bf16 || args.b.is_bf16), args);
}

static_assert(kInt8Block == kInt8BlockElems);

/// Of `slices` slices, each packed `parts` times.
Int8Args int8_args(const Buffer& data, const Buffer& packed, std::int64_t elems, int slices, int parts) {
  const bool are_slices_aligned = slices == 1 || elems * size_of(data.dtype) % 16 == 0;
  return {.data = data_of(data),
          .packed = static_cast<std::int8_t*>(packed.data),
          .elems = elems,
          .slices = slices,
          .stride = packed_bytes(elems),
          .scales_at = int8_scales_at(elems),
          .parts = parts,
          .accumulates = false,
          .is_aligned = are_aligned(data.data) && are_slices_aligned};
}

void launch_int8(ExecContext& ctx, const char* kernel, const Int8Args& args) {
  launch_elems(ctx, kernel, args.slices * int8_blocks(args.elems) * kInt8Block, kInt8Elems, args);
}

}  // namespace

void zero(ExecContext& ctx, Buffer out) { set_bytes(ctx, out, 0); }

void copy(ExecContext& ctx, Buffer out, Buffer in) {
  checks::same_bytes(out, in);
  ctx.gpu().copy(ctx.native_stream(), out, in);
}

void copy_rows(ExecContext& ctx, Buffer out, Buffer in, const RowCopy& rows) {
  checks::row_copy(out, in, rows);
  const std::int64_t elem_bytes = size_of(out.dtype);
  // Of one row there are no strides.
  std::int64_t unit = std::gcd<std::int64_t>(16, rows.run * elem_bytes);
  if (rows.rows > 1) unit = std::gcd(unit, std::gcd(rows.out_stride, rows.in_stride) * elem_bytes);
  for (const void* address : {out.data, static_cast<void*>(in.data)})
    unit = std::gcd(unit, static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(address) % 16));
  const CopyRowsArgs args{.out = out.data,
                          .in = in.data,
                          .rows = rows.rows,
                          .run = rows.run * elem_bytes / unit,
                          .out_stride = rows.out_stride * elem_bytes / unit,
                          .in_stride = rows.in_stride * elem_bytes / unit,
                          .unit_bytes = static_cast<int>(unit)};
  launch_elems(ctx, "zs_copy_rows", args.rows * args.run, 1, args);
}

void cast(ExecContext& ctx, Buffer out, Buffer in) {
  launch_map(ctx, "zs_cast", map_args(data_of(out), data_of(in), kNone, checks::same_elems(out, in)));
}

void stochastic_cast(ExecContext& ctx, Buffer out, Buffer in, const StochasticRounding& rounding) {
  const StochasticCastArgs args{.out = static_cast<std::uint16_t*>(data_of(out).address),
                                .in = floats_of(in),
                                .elems = checks::stochastic_cast(out, in, rounding),
                                .key = rounding.key,
                                .first = rounding.first,
                                .run = rounding.run,
                                .stride = rounding.stride,
                                .is_aligned = are_aligned(out.data, in.data)};
  launch_elems(ctx, "zs_stochastic_cast", args.elems, kRowElems, args);
}

void pack_int8(ExecContext& ctx, Buffer packed, Buffer elements, int slices) {
  const std::int64_t elems = checks::int8_blocks(packed, elements, slices, true);
  launch_int8(ctx, "zs_pack_int8", int8_args(elements, packed, elems, slices, 1));
}

void unpack_int8(ExecContext& ctx, Buffer elements, Buffer packed, int slices) {
  const std::int64_t elems = checks::int8_blocks(packed, elements, slices, true);
  launch_int8(ctx, "zs_fold_int8", int8_args(elements, packed, elems, slices, 1));
}

void fold_int8(ExecContext& ctx, Buffer out, Buffer packed, int parts, bool accumulate) {
  Int8Args args = int8_args(out, packed, checks::int8_blocks(packed, out, parts, false), 1, parts);
  args.accumulates = accumulate;
  launch_int8(ctx, "zs_fold_int8", args);
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

}  // namespace zs::cuda
