#include <algorithm>
#include <vector>

#include "kernels/checks.h"
#include "kernels/cpu/host.h"
#include "kernels/cpu/product.h"
#include "kernels/families.h"

/// Products of rows with the weights of their experts: of one expert after the other, cut into pieces whose sizes
/// follow from the numbers of rows alone, each by one single-threaded library call.
namespace zs::cpu {
namespace {

/// Rows of one call, which is long against the packing of a weight; and, of bf16, whose primitives are made for a
/// number of rows, of the largest: the rest is taken in powers of two, so that there are few primitives.
constexpr std::int64_t kRows = 256, kWidth = 192, kPieces = 16;

/// One library call, or, of a weight's gradient in bf16, several that add up.
struct Piece {
  Product product;
  Block block;
};

struct Operands {
  Buffer y, x, weight, bias, offsets;
  GroupedDims dims;

  std::int64_t first(std::int64_t expert) const { return offsets.as<std::int64_t>()[expert]; }
  std::int64_t rows(std::int64_t expert) const { return first(expert + 1) - first(expert); }
};

std::byte* at(const Buffer& buffer, std::int64_t element) {
  return static_cast<std::byte*>(buffer.data) + element * size_of(buffer.dtype);
}

void check(const Operands& of) {
  const GroupedDims& d = of.dims;
  for (const Buffer* buffer : {&of.y, &of.x, &of.weight}) data_of(*buffer);
  ZS_CHECK(of.y.elems == d.rows * d.out && of.x.elems == d.rows * d.in && of.weight.elems == d.experts * d.out * d.in,
           "y {}, x {}, weight {} elements for {} rows of {} experts, {} from {}", of.y.elems, of.x.elems,
           of.weight.elems, d.rows, d.experts, d.out, d.in);
  ZS_CHECK(of.bias.empty() || of.bias.elems == d.experts * d.out, "{} elements of biases", of.bias.elems);
  ZS_CHECK(of.offsets.dtype == DType::i64 && of.offsets.elems == d.experts + 1, "{} {} offsets of {} experts",
           of.offsets.elems, name_of(of.offsets.dtype), d.experts);
  ZS_CHECK(of.first(0) == 0 && of.first(d.experts) == d.rows, "offsets from {} to {} of {} rows", of.first(0),
           of.first(d.experts), d.rows);
}

/// Lengths that `side` is cut into where experts are few.
std::int64_t length_of(std::int64_t side, std::int64_t experts) {
  std::int64_t pieces = 1;
  while (pieces * experts < kPieces && side / (2 * pieces) >= kWidth) pieces *= 2;
  return round_up((side + pieces - 1) / pieces, 16);
}

std::int64_t next_rows(std::int64_t left, bool is_bf16) {
  if (!is_bf16 || left >= kRows) return std::min(left, kRows);
  std::int64_t power = kRows / 2;
  while (power > left) power /= 2;
  return power;
}

/// Products whose rows are rows of the tokens: c (rows, n) := a (rows, k) times each expert's weight.
std::vector<Piece> pieces_by_rows(const Operands& of, const Buffer& c, const Buffer& a, bool is_forward) {
  const GroupedDims& d = of.dims;
  const std::int64_t n = is_forward ? d.out : d.in, k = is_forward ? d.in : d.out, length = length_of(n, d.experts);
  const bool is_bf16 = a.dtype == DType::bf16;
  std::vector<Piece> pieces;
  for (std::int64_t e = 0; e < d.experts; ++e) {
    for (std::int64_t row = of.first(e), rows = 0; row < of.first(e + 1); row += rows) {
      rows = next_rows(of.first(e + 1) - row, is_bf16);
      const Product product{.a = at(a, row * k),
                            .b = at(of.weight, e * d.out * d.in),
                            .c = at(c, row * n),
                            .bias = of.bias.empty() ? nullptr : at(of.bias, e * n),
                            .operand = a.dtype,
                            .result = c.dtype,
                            .bias_dtype = of.bias.empty() ? DType::f32 : of.bias.dtype,
                            .dims = {.m = rows, .n = n, .k = k, .transpose_b = is_forward}};
      for (std::int64_t column = 0; column < n; column += length)
        pieces.push_back({product, {0, rows, column, std::min(length, n - column)}});
    }
  }
  return pieces;
}

/// A library's gemm has no bias: it is there before the product is added.
void run_gemm(const Piece& piece) {
  Product p = piece.product;
  if (p.bias != nullptr) {
    const auto* const bias = reinterpret_cast<const float*>(p.bias) + piece.block.column;
    for (std::int64_t row = 0; row < p.dims.m; ++row)
      std::copy_n(bias, piece.block.columns, reinterpret_cast<float*>(p.c) + row * p.dims.n + piece.block.column);
    p.bias = nullptr;
    p.dims.beta = 1;
  }
  ProductLibrary::run_gemm(p, piece.block);
}

/// Operands in f32, where the processor has no products of bf16; `c` is what the product writes.
Operands widened(ExecContext& ctx, ProductLibrary& library, Operands of, Buffer Operands::*c) {
  const auto widen_one = [&](Buffer& buffer, std::vector<float>& room, bool is_read) {
    if (buffer.empty() || buffer.dtype == DType::f32) return;
    room.resize(static_cast<std::size_t>(buffer.elems));
    if (is_read) widen(ctx, room, buffer.data, buffer.elems);
    buffer = {room.data(), buffer.elems, DType::f32, buffer.device};
  };
  widen_one(of.y, library.a, c != &Operands::y);
  widen_one(of.x, library.b, c != &Operands::x);
  if (c != &Operands::weight) widen_one(of.weight, library.c, true);
  widen_one(of.bias, library.bias, true);
  return of;
}

void run_by_rows(ExecContext& ctx, const Operands& given, bool is_forward) {
  check(given);
  if (given.dims.rows == 0) return;
  Buffer Operands::*const result = is_forward ? &Operands::y : &Operands::x;
  auto& library = ctx.state<ProductLibrary>();
  const bool widens = given.weight.dtype == DType::bf16 && !cpu_has_bf16_products();
  const Operands of = widens ? widened(ctx, library, given, result) : given;
  const std::vector<Piece> pieces = pieces_by_rows(of, of.*result, is_forward ? of.x : of.y, is_forward);
  const bool is_bf16 = of.weight.dtype == DType::bf16;
  library.run_team(ctx.threads(), std::ssize(pieces), "products by expert", [&](std::int64_t i, int thread) {
    const Piece& piece = pieces[static_cast<std::size_t>(i)];
    if (is_bf16) return library.run_primitive(thread, piece.product, piece.block);
    run_gemm(piece);
  });
  if (widens) cpu_kernels().cast(ctx, given.*result, of.*result);
}

void grouped_linear(ExecContext& ctx, Buffer y, Buffer x, Buffer weight, Buffer bias, Buffer offsets,
                    const GroupedDims& dims) {
  checks::same_dtype(y, x);
  checks::same_dtype(x, weight);
  run_by_rows(ctx, {y, x, weight, bias, offsets, dims}, true);
}

void grouped_dx(ExecContext& ctx, Buffer dx, Buffer dy, Buffer weight, Buffer offsets, const GroupedDims& dims) {
  checks::same_dtype(dx, dy);
  checks::same_dtype(dy, weight);
  run_by_rows(ctx, {dy, dx, weight, {}, offsets, dims}, false);
}

/// Some rows of an expert's weight gradient.
struct WeightPart {
  std::int64_t expert, row, rows;
};

/// part := [part +] dy^T x of the expert's rows. A sum in f32 of pieces where bf16 or another sum's rounding is.
void run_part(ProductLibrary& library, int thread, const Operands& of, const WeightPart& part, float beta) {
  const GroupedDims& d = of.dims;
  const bool is_bf16 = of.x.dtype == DType::bf16, is_direct = of.weight.dtype == DType::f32;
  const std::int64_t first = part.expert * d.out * d.in + part.row * d.in, elems = part.rows * d.in;
  std::vector<float> sums(is_direct ? 0 : static_cast<std::size_t>(elems));
  auto* const to = is_direct ? of.weight.as<float>() + first : sums.data();
  if (is_direct && beta == 0 && of.rows(part.expert) == 0) std::fill_n(to, elems, 0.0f);
  Product p{.a = nullptr,
            .b = nullptr,
            .c = reinterpret_cast<std::byte*>(to - part.row * d.in),  // the block begins at part.row
            .bias = nullptr,
            .operand = of.x.dtype,
            .result = DType::f32,
            .bias_dtype = DType::f32,
            .dims = {.m = d.out, .n = d.in, .k = 0, .transpose_a = true, .beta = is_direct ? beta : 0}};
  for (std::int64_t row = of.first(part.expert); row < of.first(part.expert + 1); row += p.dims.k) {
    p.dims.k = is_bf16 ? next_rows(of.first(part.expert + 1) - row, true) : of.rows(part.expert);
    p.a = at(of.y, row * d.out);
    p.b = at(of.x, row * d.in);
    const Block block{part.row, part.rows, 0, d.in};
    if (is_bf16) {
      library.run_primitive(thread, p, block);
    } else {
      ProductLibrary::run_gemm(p, block);
    }
    p.dims.beta = 1;
  }
  if (is_direct) return;
  auto* const out = of.weight.as<BFloat16>() + first;
  for (std::int64_t i = 0; i < elems; ++i)
    out[i] = BFloat16(sums[static_cast<std::size_t>(i)] + (beta == 0 ? 0.0f : static_cast<float>(out[i])));
}

void grouped_dweight(ExecContext& ctx, Buffer dweight, Buffer dy, Buffer x, Buffer offsets, const GroupedDims& dims,
                     float beta) {
  checks::same_dtype(dy, x);
  const Operands given{dy, x, dweight, {}, offsets, dims};
  check(given);
  auto& library = ctx.state<ProductLibrary>();
  const bool widens = x.dtype == DType::bf16 && !cpu_has_bf16_products();
  const Operands of = widens ? widened(ctx, library, given, &Operands::weight) : given;
  const std::int64_t length = length_of(dims.out, dims.experts);
  std::vector<WeightPart> parts;
  for (std::int64_t e = 0; e < dims.experts; ++e)
    for (std::int64_t row = 0; row < dims.out; row += length)
      parts.push_back({e, row, std::min(length, dims.out - row)});
  library.run_team(ctx.threads(), std::ssize(parts), "weight gradients by expert", [&](std::int64_t i, int thread) {
    run_part(library, thread, of, parts[static_cast<std::size_t>(i)], beta);
  });
}

void grouped_dbias(ExecContext& ctx, Buffer dbias, Buffer dy, Buffer offsets, const GroupedDims& d, float beta) {
  ZS_CHECK(dbias.elems == d.experts * d.out && dy.elems == d.rows * d.out && offsets.elems == d.experts + 1,
           "{} elements of biases, {} of dy", dbias.elems, dy.elems);
  const Data in = data_of(dy);
  std::vector<float> sums(static_cast<std::size_t>(dbias.elems));
  const auto* const at = offsets.as<std::int64_t>();
#pragma omp parallel for num_threads(ctx.threads()) if (dy.elems > (1 << 15))
  for (std::int64_t e = 0; e < d.experts; ++e) {
    float* const to = sums.data() + e * d.out;
    for (std::int64_t i = at[e] * d.out; i < at[e + 1] * d.out; ++i)
      to[i % d.out] += in.is_bf16 ? static_cast<float>(static_cast<const BFloat16*>(in.address)[i])
                                  : static_cast<const float*>(in.address)[i];
  }
  store_gradient(ctx, dbias, sums.data(), beta);
}

}  // namespace

void fill_grouped_matmul(KernelTable& table) {
  table.experts.grouped_linear = grouped_linear;
  table.experts.grouped_dx = grouped_dx;
  table.experts.grouped_dweight = grouped_dweight;
  table.experts.grouped_dbias = grouped_dbias;
}

}  // namespace zs::cpu
