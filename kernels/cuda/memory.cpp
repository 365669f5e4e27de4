#include <numeric>

#include "kernels/checks.h"
#include "kernels/cuda/launch.h"
#include "kernels/families.h"
#include "runtime/device/cuda_context.h"
#include "runtime/device/upload_ring.h"

namespace zs::cuda {
namespace {

void zero(ExecContext& ctx, Buffer out) { set_bytes(ctx, out, 0); }

void copy(ExecContext& ctx, Buffer out, Buffer in) {
  checks::same_bytes(out, in);
  ctx.gpu().copy(ctx.native_stream(), out, in);
}

void upload(ExecContext& ctx, Buffer out, const void* in) { ctx.uploads().upload(stream_of(ctx), out, in); }

void download(ExecContext& ctx, void* out, Buffer in) {
  ctx.gpu().copy(ctx.native_stream(), {out, in.bytes(), DType::u8, DeviceKind::cpu}, in);
}

void copy_rows(ExecContext& ctx, Buffer out, Buffer in, const RowCopy& rows) {
  checks::row_copy(out, in, rows);
  const std::int64_t elem_bytes = size_of(out.dtype);
  // A single row has no strides.
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

}  // namespace

void fill_memory(KernelTable& table, KernelNames& names) {
  table.zero = zero;
  table.copy = copy;
  table.upload = upload;
  table.download = download;
  table.copy_rows = copy_rows;
  names.push_back("zs_copy_rows");
}

}  // namespace zs::cuda
