#include "kernels/families.h"

#include <cstring>

#include "kernels/checks.h"
#include "kernels/cpu/host.h"

namespace zs::cpu {
namespace {

/// The bytes of a buffer that are whole f32, and how many bytes follow them.
struct Words {
  Data data;
  std::int64_t count;
  std::byte* rest;
  std::size_t rest_bytes;
};
Words words_of(const Buffer& buffer) {
  auto* bytes = static_cast<std::byte*>(buffer.data);
  const std::int64_t whole = buffer.bytes() / 4;
  return {{bytes, false}, whole, bytes + 4 * whole, static_cast<std::size_t>(buffer.bytes() - 4 * whole)};
}

void zero(ExecContext& ctx, Buffer out) {
  const Words to = words_of(out);
  isa().zero(ctx.threads(), to.data, to.count);
  if (to.rest_bytes > 0) std::memset(to.rest, 0, to.rest_bytes);
}

void copy(ExecContext& ctx, Buffer out, Buffer in) {
  checks::same_bytes(out, in);
  if (out.data == in.data) return;
  const Words to = words_of(out), from = words_of(in);
  isa().cast(ctx.threads(), to.data, from.data, to.count);
  if (to.rest_bytes > 0) std::memcpy(to.rest, from.rest, to.rest_bytes);
}

void upload(ExecContext&, Buffer out, const void* in) {
  if (out.bytes() > 0) std::memcpy(out.data, in, static_cast<std::size_t>(out.bytes()));
}

void download(ExecContext&, void* out, Buffer in) {
  if (in.bytes() > 0) std::memcpy(out, in.data, static_cast<std::size_t>(in.bytes()));
}

void copy_rows(ExecContext& ctx, Buffer out, Buffer in, const RowCopy& rows) {
  checks::row_copy(out, in, rows);
  for (std::int64_t r = 0; r < rows.rows; ++r)
    copy(ctx, out.slice(r * rows.out_stride, rows.run), in.slice(r * rows.in_stride, rows.run));
}

}  // namespace

void fill_memory(KernelTable& table) {
  table.zero = zero;
  table.copy = copy;
  table.upload = upload;
  table.download = download;
  table.copy_rows = copy_rows;
}

}  // namespace zs::cpu
