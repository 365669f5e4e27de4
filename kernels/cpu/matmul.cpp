#include <algorithm>
#include <cstddef>
#include <oneapi/dnnl/dnnl.hpp>
#include <string_view>

#include "kernels/checks.h"
#include "kernels/cpu/host.h"
#include "kernels/cpu/product.h"
#include "kernels/families.h"

/// Products by oneDNN, API generation 2 or 3. Every product is cut into blocks of C whose sizes follow from its shape
/// alone; each block is one single-threaded library call, so that the bits are the same for every number of threads.
namespace zs::cpu {
namespace {

/// x W^T, as a linear layer computes it.
bool is_forward(const MatmulDims& dims) { return !dims.transpose_a && dims.transpose_b; }

/// True if the library multiplies bf16 by tiles (AMX), which wants larger pieces, and each operand's long side whole.
bool library_has_tiles() {
#if defined(__x86_64__)
  constexpr unsigned kNeeded = dnnl_cpu_isa_avx512_core_amx;
  static const bool has = (static_cast<unsigned>(dnnl_get_effective_cpu_isa()) & kNeeded) == kNeeded;
  return has;
#else
  return false;
#endif
}

/// A power of two at most 16 of pieces of at least 192 (smaller ones lose to packing the other operand again;
/// docs/decisions/0005).
struct Cut {
  bool by_columns;
  std::int64_t length, blocks;

  explicit Cut(const Product& p) : by_columns(cuts_columns(p)) {
    const std::int64_t side = by_columns ? p.dims.n : p.dims.m, most = is_tiled(p) ? 8 : 16;
    std::int64_t pieces = 1;
    while (pieces < most && side / (2 * pieces) >= 192) pieces *= 2;
    length = round_up((side + pieces - 1) / pieces, 16);
    blocks = (side + length - 1) / length;
  }
  Block block(const MatmulDims& dims, std::int64_t i) const {
    const std::int64_t first = i * length;
    if (by_columns) return {0, dims.m, first, std::min(length, dims.n - first)};
    return {first, std::min(length, dims.m - first), 0, dims.n};
  }

 private:
  static bool is_tiled(const Product& p) { return p.operand == DType::bf16 && library_has_tiles(); }
  /// Along the longer side of C; by tiles a forward pass along its tokens where these are enough, and never along the
  /// shorter inner side.
  static bool cuts_columns(const Product& p) {
    const MatmulDims& d = p.dims;
    if (is_tiled(p) && is_forward(d)) return d.m < 512;
    if (is_tiled(p) && !d.transpose_a && d.k > 2 * d.n) return true;
    return d.n > d.m;
  }
};

/// Measured with oneDNN 2.6: the gemm call is the faster one, except for f32 a * b transposed (the forward pass of a
/// linear layer).
bool prefers_gemm(const Product& p) { return p.operand == DType::f32 && p.bias == nullptr && !is_forward(p.dims); }

void run_product(ProductLibrary& library, int threads, const Product& p) {
  const Cut cut(p);
  const MatmulDims& d = p.dims;
  library.run_team(threads, d.batch * cut.blocks, fmt::format("product m {}, n {}, k {}", d.m, d.n, d.k),
                   [&](std::int64_t i, int thread) {
                     const Block block = cut.block(p.dims, i % cut.blocks);
                     const Product one = p.item(i / cut.blocks);
                     if (prefers_gemm(p)) {
                       ProductLibrary::run_gemm(one, block);
                     } else {
                       library.run_primitive(thread, one, block);
                     }
                   });
}

/// The product of bf16 operands by way of f32 copies.
void run_widened(ExecContext& ctx, ProductLibrary& library, Product p) {
  const MatmulDims& d = p.dims;
  const Product narrow = p;
  p.operand = p.result = DType::f32;
  p.a = widen(ctx, library.a, p.a, d.batch * d.m * d.k);
  p.b = widen(ctx, library.b, p.b, d.batch * d.k * d.n);
  if (p.bias != nullptr && p.bias_dtype == DType::bf16) {
    p.bias = widen(ctx, library.bias, p.bias, d.n);
    p.bias_dtype = DType::f32;
  }
  if (narrow.result == DType::bf16) {
    if (d.beta != 0) widen(ctx, library.c, p.c, d.batch * d.m * d.n);
    library.c.resize(static_cast<std::size_t>(d.batch * d.m * d.n));
    p.c = reinterpret_cast<std::byte*>(library.c.data());
  }
  run_product(library, ctx.threads(), p);
  if (narrow.result == DType::bf16) isa().cast(ctx.threads(), {narrow.c, true}, {p.c, false}, d.batch * d.m * d.n);
}

Product checked(const Buffer& c, const Buffer& a, const Buffer& b, const Buffer& bias, const MatmulDims& d) {
  checks::matmul(c, a, b, bias, d);
  for (const Buffer* buffer : {&a, &b, &c}) data_of(*buffer);
  return {.a = static_cast<const std::byte*>(a.data),
          .b = static_cast<const std::byte*>(b.data),
          .c = static_cast<std::byte*>(c.data),
          .bias = bias.empty() ? nullptr : static_cast<const std::byte*>(bias.data),
          .operand = a.dtype,
          .result = c.dtype,
          .bias_dtype = bias.empty() ? DType::f32 : bias.dtype,
          .dims = d};
}

bool library_has_bf16() {
#if defined(__x86_64__)
  constexpr unsigned kNeeded = dnnl_cpu_isa_avx512_core_bf16;
  return __builtin_cpu_supports("avx512bf16") &&
         (static_cast<unsigned>(dnnl_get_effective_cpu_isa()) & kNeeded) == kNeeded;
#else
  return false;
#endif
}

void matmul(ExecContext& ctx, Buffer c, Buffer a, Buffer b, Buffer bias, const MatmulDims& dims) {
  if (c.empty()) return;
  const Product product = checked(c, a, b, bias, dims);
  if (checks::is_empty_sum(bias, dims)) return dims.beta == 0 ? cpu_kernels().zero(ctx, c) : void();
  auto& library = ctx.state<ProductLibrary>();
  if (product.operand == DType::bf16 && !cpu_has_bf16_products()) {
    run_widened(ctx, library, product);
  } else {
    run_product(library, ctx.threads(), product);
  }
}

}  // namespace

void fill_matmul(KernelTable& table) {
  table.scratch.matmul = [](const MatmulDims&) { return std::int64_t{0}; };  // the library keeps its own
  table.matmul = matmul;
}

}  // namespace zs::cpu

namespace zs {

bool cpu_has_bf16_products() {
  static const std::string_view isa = cpu_isa();
  static const bool has = (isa == "amx" || isa == "avx512") && cpu::library_has_bf16();
  return has;
}

}  // namespace zs
