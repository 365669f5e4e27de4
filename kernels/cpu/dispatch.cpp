#include "kernels/cpu/dispatch.h"

#include <cstring>

#include "kernels/checks.h"
#include "runtime/base/int8_blocks.h"

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

}  // namespace

Data data_of(const Buffer& buffer) {
  ZS_CHECK(buffer.device == DeviceKind::cpu, "a CPU kernel got a buffer of device {}", name_of(buffer.device));
  ZS_CHECK(buffer.dtype == DType::f32 || buffer.dtype == DType::bf16, "expected f32 or bf16, got {}", name_of(buffer.dtype));
  return {buffer.data, buffer.dtype == DType::bf16};
}

float* floats_of(const Buffer& buffer) {
  data_of(buffer);
  return buffer.as<float>();
}

void check_indices(const char* what, const std::int32_t* indices, std::int64_t count, std::int64_t limit) {
  for (std::int64_t i = 0; i < count; ++i)
    ZS_CHECK(indices[i] >= 0 && indices[i] < limit, "{} {} is {}, expected [0, {})", what, i, indices[i], limit);
}

void zero(ExecContext& ctx, Buffer out) {
  const Words to = words_of(out);
  isa().zero(ctx.threads(), to.data, to.count);
  if (to.rest_bytes > 0) std::memset(to.rest, 0, to.rest_bytes);
}

void upload(ExecContext&, Buffer out, const void* in) {
  if (out.bytes() > 0) std::memcpy(out.data, in, static_cast<std::size_t>(out.bytes()));
}

void download(ExecContext&, void* out, Buffer in) {
  if (in.bytes() > 0) std::memcpy(out, in.data, static_cast<std::size_t>(in.bytes()));
}

void copy(ExecContext& ctx, Buffer out, Buffer in) {
  checks::same_bytes(out, in);
  if (out.data == in.data) return;
  const Words to = words_of(out), from = words_of(in);
  isa().cast(ctx.threads(), to.data, from.data, to.count);
  if (to.rest_bytes > 0) std::memcpy(to.rest, from.rest, to.rest_bytes);
}

void copy_rows(ExecContext& ctx, Buffer out, Buffer in, const RowCopy& rows) {
  checks::row_copy(out, in, rows);
  for (std::int64_t r = 0; r < rows.rows; ++r) copy(ctx, out.slice(r * rows.out_stride, rows.run), in.slice(r * rows.in_stride, rows.run));
}

void cast(ExecContext& ctx, Buffer out, Buffer in) { isa().cast(ctx.threads(), data_of(out), data_of(in), checks::same_elems(out, in)); }

void stochastic_cast(ExecContext& ctx, Buffer out, Buffer in, const StochasticRounding& rounding) {
  const std::int64_t elems = checks::stochastic_cast(out, in, rounding);
  isa().stochastic_cast(ctx.threads(), static_cast<std::uint16_t*>(data_of(out).address), floats_of(in), elems, rounding);
}

// By one thread: on the host communication packs for itself, on the thread of its stream.
void pack_int8(ExecContext&, Buffer packed, Buffer elements, int slices) {
  checks::int8_blocks(packed, elements, slices, true);
  zs::pack_int8(static_cast<std::byte*>(packed.data), elements, slices);
}

void unpack_int8(ExecContext&, Buffer elements, Buffer packed, int slices) {
  checks::int8_blocks(packed, elements, slices, true);
  zs::unpack_int8(elements, static_cast<const std::byte*>(packed.data), slices);
}

void fold_int8(ExecContext&, Buffer out, Buffer packed, int parts, bool accumulate) {
  checks::int8_blocks(packed, out, parts, false);
  zs::fold_int8(out, static_cast<const std::byte*>(packed.data), parts, accumulate);
}

void add(ExecContext& ctx, Buffer out, Buffer a, Buffer b) {
  const std::int64_t elems = checks::alike(out, a, b);
  isa().add(ctx.threads(), data_of(out), data_of(a), data_of(b), elems);
}

void scale(ExecContext& ctx, Buffer out, Buffer in, float factor) {
  isa().scale(ctx.threads(), data_of(out), data_of(in), checks::alike(out, in, in), factor);
}

void accumulate(ExecContext& ctx, Buffer out, Buffer in) {
  isa().accumulate(ctx.threads(), data_of(out), data_of(in), checks::same_elems(out, in));
}

void gelu_forward(ExecContext& ctx, Buffer y, Buffer x, GeluKind kind) {
  isa().gelu_forward(ctx.threads(), data_of(y), data_of(x), checks::alike(y, x, x), kind);
}

void gelu_backward(ExecContext& ctx, Buffer dx, Buffer dy, Buffer x, GeluKind kind) {
  const std::int64_t elems = checks::alike(dx, dy, x);
  isa().gelu_backward(ctx.threads(), data_of(dx), data_of(dy), data_of(x), elems, kind);
}

}  // namespace zs::cpu
