#include "runtime/base/int8_blocks.h"
#include "kernels/checks.h"
#include "kernels/cuda/launch.h"
#include "kernels/families.h"

namespace zs::cuda {
namespace {

static_assert(kInt8Block == kInt8BlockElems);

/// Arguments for `slices` slices, each packed `parts` times.
Int8Args int8_args(const Buffer& data, const Buffer& packed, std::int64_t elems, int slices, int parts) {
  const bool are_slices_aligned = slices == 1 || elems * size_of(data.dtype) % 16 == 0;
  return {.data = elements_of(data),
          .packed = static_cast<std::int8_t*>(packed.data),
          .elems = elems,
          .slices = slices,
          .stride = packed_bytes(elems),
          .scales_at = int8_scales_at(elems),
          .parts = parts,
          .is_aligned = are_aligned(data.data) && are_slices_aligned};
}

void launch_int8(ExecContext& ctx, const char* kernel, DType dtype, const Int8Args& args) {
  launch_elems(ctx, typed(kernel, dtype), args.slices * int8_blocks(args.elems) * kInt8Block, kInt8Elems, args);
}

void pack_int8(ExecContext& ctx, Buffer packed, Buffer elements, int slices) {
  const std::int64_t elems = checks::blocks(packed, elements, slices, true);
  launch_int8(ctx, "zs_pack_int8", elements.dtype, int8_args(elements, packed, elems, slices, 1));
}

void unpack_int8(ExecContext& ctx, Buffer elements, Buffer packed, int slices) {
  const std::int64_t elems = checks::blocks(packed, elements, slices, true);
  launch_int8(ctx, "zs_reduce_int8", elements.dtype, int8_args(elements, packed, elems, slices, 1));
}

void reduce_int8(ExecContext& ctx, Buffer out, Buffer packed, int parts, bool accumulate) {
  Int8Args args = int8_args(out, packed, checks::blocks(packed, out, parts, false), 1, parts);
  args.accumulates = accumulate;
  launch_int8(ctx, "zs_reduce_int8", out.dtype, args);
}

void pack_fp8(ExecContext& ctx, Buffer packed, Buffer elements, int slices) {
  const std::int64_t elems = checks::blocks(packed, elements, slices, true);
  launch_int8(ctx, "zs_pack_fp8", elements.dtype, int8_args(elements, packed, elems, slices, 1));
}

void unpack_fp8(ExecContext& ctx, Buffer elements, Buffer packed, int slices) {
  const std::int64_t elems = checks::blocks(packed, elements, slices, true);
  launch_int8(ctx, "zs_unpack_fp8", elements.dtype, int8_args(elements, packed, elems, slices, 1));
}

}  // namespace

void fill_int8_blocks(KernelTable& table, KernelNames& names) {
  table.pack_int8 = pack_int8;
  table.unpack_int8 = unpack_int8;
  table.reduce_int8 = reduce_int8;
  table.pack_fp8 = pack_fp8;
  table.unpack_fp8 = unpack_fp8;
  add_typed(names, {"zs_pack_int8", "zs_reduce_int8", "zs_pack_fp8", "zs_unpack_fp8"});
}

}  // namespace zs::cuda
