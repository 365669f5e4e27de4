#include "kernels/cpu/dispatch.h"

#include <cstring>
#include <memory>
#include <vector>

namespace zs::cpu {
namespace {

struct ScratchBlock {
  std::vector<float> elems;
};

std::int64_t same_elems(const Buffer& out, const Buffer& in) {
  ZS_CHECK(out.elems == in.elems, "{} elements out, {} in", out.elems, in.elems);
  return out.elems;
}

void same_dtype(const Buffer& out, const Buffer& in) {
  ZS_CHECK(out.dtype == in.dtype, "{} out, {} in", name_of(out.dtype), name_of(in.dtype));
}

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

float* scratch(ExecContext& ctx, std::int64_t elems) {
  std::vector<float>& block = ctx.state<ScratchBlock>().elems;
  if (static_cast<std::int64_t>(block.size()) < elems + 16) {
    block = {};  // the old block goes before the new one comes
    block.resize(static_cast<std::size_t>(elems + 16));
  }
  void* address = block.data();
  std::size_t room = block.size() * sizeof(float);
  return static_cast<float*>(std::align(64, static_cast<std::size_t>(elems) * sizeof(float), address, room));
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

void copy(ExecContext& ctx, Buffer out, Buffer in) {
  ZS_CHECK(out.bytes() == in.bytes(), "{} bytes out, {} in", out.bytes(), in.bytes());
  if (out.data == in.data) return;
  const Words to = words_of(out), from = words_of(in);
  isa().cast(ctx.threads(), to.data, from.data, to.count);
  if (to.rest_bytes > 0) std::memcpy(to.rest, from.rest, to.rest_bytes);
}

void copy_rows(ExecContext& ctx, Buffer out, Buffer in, const RowCopy& rows) {
  same_dtype(out, in);
  const auto extent = [&](std::int64_t stride) { return rows.rows == 0 ? 0 : (rows.rows - 1) * stride + rows.run; };
  ZS_CHECK(rows.rows >= 0 && rows.run >= 0 && (rows.rows < 2 || (rows.out_stride >= rows.run && rows.in_stride >= rows.run)),
           "{} rows of {}, {} apart out and {} in", rows.rows, rows.run, rows.out_stride, rows.in_stride);
  ZS_CHECK(out.elems == extent(rows.out_stride) && in.elems == extent(rows.in_stride),
           "{} rows of {}, {} apart in {} elements out, {} apart in {} in", rows.rows, rows.run, rows.out_stride, out.elems, rows.in_stride,
           in.elems);
  for (std::int64_t r = 0; r < rows.rows; ++r) copy(ctx, out.slice(r * rows.out_stride, rows.run), in.slice(r * rows.in_stride, rows.run));
}

void cast(ExecContext& ctx, Buffer out, Buffer in) { isa().cast(ctx.threads(), data_of(out), data_of(in), same_elems(out, in)); }

void add(ExecContext& ctx, Buffer out, Buffer a, Buffer b) {
  same_dtype(out, a);
  same_dtype(out, b);
  same_elems(out, b);
  isa().add(ctx.threads(), data_of(out), data_of(a), data_of(b), same_elems(out, a));
}

void scale(ExecContext& ctx, Buffer out, Buffer in, float factor) {
  same_dtype(out, in);
  isa().scale(ctx.threads(), data_of(out), data_of(in), same_elems(out, in), factor);
}

void accumulate(ExecContext& ctx, Buffer out, Buffer in) {
  isa().accumulate(ctx.threads(), data_of(out), data_of(in), same_elems(out, in));
}

void gelu_forward(ExecContext& ctx, Buffer y, Buffer x, GeluKind kind) {
  same_dtype(y, x);
  isa().gelu_forward(ctx.threads(), data_of(y), data_of(x), same_elems(y, x), kind);
}

void gelu_backward(ExecContext& ctx, Buffer dx, Buffer dy, Buffer x, GeluKind kind) {
  same_dtype(dx, dy);
  same_dtype(dx, x);
  same_elems(dx, dy);
  isa().gelu_backward(ctx.threads(), data_of(dx), data_of(dy), data_of(x), same_elems(dx, x), kind);
}

}  // namespace zs::cpu
