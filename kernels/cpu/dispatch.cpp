#include "kernels/cpu/dispatch.h"

#include <algorithm>
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

/// f(byte offset, bytes) over pieces that are large enough to be worth a thread.
template <class F>
void split_bytes(ExecContext& ctx, std::int64_t bytes, F f) {
  const std::int64_t piece = std::max<std::int64_t>(1 << 17, round_up((bytes + ctx.threads() - 1) / ctx.threads(), 4096));
  if (bytes <= piece) {
    if (bytes > 0) f(std::int64_t{0}, bytes);
    return;
  }
  const std::int64_t pieces = (bytes + piece - 1) / piece;
#pragma omp parallel for num_threads(ctx.threads()) schedule(static)
  for (std::int64_t i = 0; i < pieces; ++i) f(i * piece, std::min(piece, bytes - i * piece));
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
  auto* bytes = static_cast<std::byte*>(out.data);
  split_bytes(ctx, out.bytes(), [=](std::int64_t at, std::int64_t count) { std::memset(bytes + at, 0, static_cast<std::size_t>(count)); });
}

void copy(ExecContext& ctx, Buffer out, Buffer in) {
  ZS_CHECK(out.bytes() == in.bytes(), "{} bytes out, {} in", out.bytes(), in.bytes());
  auto* to = static_cast<std::byte*>(out.data);
  const auto* from = static_cast<const std::byte*>(in.data);
  if (to == from) return;
  split_bytes(ctx, out.bytes(),
              [=](std::int64_t at, std::int64_t count) { std::memcpy(to + at, from + at, static_cast<std::size_t>(count)); });
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
