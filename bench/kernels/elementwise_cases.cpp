#include "bench/kernels/kernel_case.h"
#include "runtime/base/int8_blocks.h"
#include "runtime/base/nf4_blocks.h"

/// Kernels that look at each element on its own.
namespace zs::bench {
namespace {

DType other(DType dtype) { return dtype == DType::f32 ? DType::bf16 : DType::f32; }

void add_copies(std::vector<KernelCase>& cases, DType dtype, std::int64_t n) {
  const auto size = static_cast<double>(size_of(dtype)), other_size = static_cast<double>(size_of(other(dtype)));
  const auto elems = static_cast<double>(n);
  cases.push_back({.kernel = "zero",
                   .shape = fmt::format("{}", n),
                   .dtype = dtype,
                   .bytes = elems * size,
                   .make = [=](Arrays& arrays, int) {
                     const Buffer out = arrays.random(n, dtype);
                     return [=](ExecContext& exec) { kernels_of(exec).zero(exec, out); };
                   }});
  cases.push_back({.kernel = "copy",
                   .shape = fmt::format("{}", n),
                   .dtype = dtype,
                   .bytes = 2 * elems * size,
                   .make = [=](Arrays& arrays, int) {
                     const Buffer out = arrays.random(n, dtype), in = arrays.random(n, dtype);
                     return [=](ExecContext& exec) { kernels_of(exec).copy(exec, out, in); };
                   }});
  constexpr std::int64_t kShards = 4, kRun = 192;  // a matrix of 768 columns from its shards on the last dim
  const std::int64_t rows = n / (kShards * kRun), row = kShards * kRun;
  cases.push_back({.kernel = "copy_rows",
                   .shape = fmt::format("{} x {} from {}", rows, row, kShards),
                   .dtype = dtype,
                   .bytes = 2 * static_cast<double>(rows * row) * size,
                   .make = [=](Arrays& arrays, int) {
                     const Buffer out = arrays.random(rows * row, dtype), in = arrays.random(rows * row, dtype);
                     return [=](ExecContext& exec) {
                       for (std::int64_t i = 0; i < kShards; ++i) {
                         kernels_of(exec).copy_rows(exec, out.slice(i * kRun, (rows - 1) * row + kRun),
                                                    in.slice(i * rows * kRun, rows * kRun), {rows, kRun, row, kRun});
                       }
                     };
                   }});
  cases.push_back({.kernel = "cast",
                   .shape = fmt::format("{} to {}", n, zs::name_of(other(dtype))),
                   .dtype = dtype,
                   .bytes = elems * (size + other_size),
                   .make = [=](Arrays& arrays, int) {
                     const Buffer out = arrays.random(n, other(dtype)), in = arrays.random(n, dtype);
                     return [=](ExecContext& exec) { kernels_of(exec).cast(exec, out, in); };
                   }});
}

void add_arithmetic(std::vector<KernelCase>& cases, DType dtype, std::int64_t n, const std::string& shape) {
  const auto bytes = static_cast<double>(n * size_of(dtype));
  cases.push_back(
      {.kernel = "add", .shape = shape, .dtype = dtype, .bytes = 3 * bytes, .make = [=](Arrays& arrays, int) {
         const Buffer out = arrays.random(n, dtype), a = arrays.random(n, dtype), b = arrays.random(n, dtype);
         return [=](ExecContext& exec) { kernels_of(exec).add(exec, out, a, b); };
       }});
  cases.push_back(
      {.kernel = "scale", .shape = shape, .dtype = dtype, .bytes = 2 * bytes, .make = [=](Arrays& arrays, int) {
         const Buffer out = arrays.random(n, dtype), in = arrays.random(n, dtype);
         return [=](ExecContext& exec) { kernels_of(exec).scale(exec, out, in, 0.5f); };
       }});
}

void add_accumulate(std::vector<KernelCase>& cases, DType dtype, std::int64_t n, DType into) {
  cases.push_back({.kernel = "accumulate",
                   .shape = fmt::format("{} into {}", n, zs::name_of(into)),
                   .dtype = dtype,
                   .bytes = static_cast<double>(n * (size_of(dtype) + 2 * size_of(into))),
                   .make = [=](Arrays& arrays, int) {
                     const Buffer out = arrays.random(n, into), in = arrays.random(n, dtype);
                     return [=](ExecContext& exec) { kernels_of(exec).accumulate(exec, out, in); };
                   }});
}

/// As a gather of 4 ranks packs and decodes, and a reduction of 4 ranks adds up.
void add_int8(std::vector<KernelCase>& cases, DType dtype, std::int64_t n) {
  constexpr int kParts = 4;
  const std::int64_t slice = n / kParts, packed = kParts * packed_bytes(slice);
  const auto add = [&](const char* kernel, std::int64_t elems, auto make) {
    cases.push_back({.kernel = kernel,
                     .shape = fmt::format("{} x {}", kParts, slice),
                     .dtype = dtype,
                     .bytes = static_cast<double>(packed + elems * size_of(dtype)),
                     .make = make});
  };
  add("pack_int8", kParts * slice, [=](Arrays& arrays, int) {
    const Buffer out = arrays.zeros(packed, DType::u8), in = arrays.random(kParts * slice, dtype);
    return [=](ExecContext& exec) { kernels_of(exec).pack_int8(exec, out, in, kParts); };
  });
  add("unpack_int8", kParts * slice, [=](Arrays& arrays, int) {
    const Buffer out = arrays.random(kParts * slice, dtype), in = arrays.zeros(packed, DType::u8);
    return [=](ExecContext& exec) { kernels_of(exec).unpack_int8(exec, out, in, kParts); };
  });
  add("pack_fp8", kParts * slice, [=](Arrays& arrays, int) {
    const Buffer out = arrays.zeros(packed, DType::u8), in = arrays.random(kParts * slice, dtype);
    return [=](ExecContext& exec) { kernels_of(exec).pack_fp8(exec, out, in, kParts); };
  });
  add("unpack_fp8", kParts * slice, [=](Arrays& arrays, int) {
    const Buffer out = arrays.random(kParts * slice, dtype), in = arrays.zeros(packed, DType::u8);
    return [=](ExecContext& exec) { kernels_of(exec).unpack_fp8(exec, out, in, kParts); };
  });
  const std::int64_t in_nf4 = kParts * nf4_bytes(slice);
  cases.push_back({.kernel = "unpack_nf4",
                   .shape = fmt::format("{} x {}", kParts, slice),
                   .dtype = dtype,
                   .bytes = static_cast<double>(in_nf4 + kParts * slice * size_of(dtype)),
                   .make = [=](Arrays& arrays, int) {
                     const Buffer out = arrays.random(kParts * slice, dtype), in = arrays.zeros(in_nf4, DType::u8);
                     return [=](ExecContext& exec) { kernels_of(exec).unpack_nf4(exec, out, in, kParts); };
                   }});
  add("reduce_int8", slice, [=](Arrays& arrays, int) {
    const Buffer out = arrays.random(slice, dtype), in = arrays.zeros(packed, DType::u8);
    return [=](ExecContext& exec) { kernels_of(exec).reduce_int8(exec, out, in, kParts, false); };
  });
}

void add_gelu(std::vector<KernelCase>& cases, DType dtype, std::int64_t n, const std::string& shape, GeluKind kind) {
  const auto bytes = static_cast<double>(n * size_of(dtype));
  const std::string text = shape + (kind == GeluKind::tanh ? " tanh" : " erf");
  cases.push_back(
      {.kernel = "gelu_forward", .shape = text, .dtype = dtype, .bytes = 2 * bytes, .make = [=](Arrays& arrays, int) {
         const Buffer y = arrays.random(n, dtype), x = arrays.random(n, dtype, -3, 3);
         return [=](ExecContext& exec) { kernels_of(exec).gelu_forward(exec, y, x, kind); };
       }});
  cases.push_back(
      {.kernel = "gelu_backward", .shape = text, .dtype = dtype, .bytes = 3 * bytes, .make = [=](Arrays& arrays, int) {
         const Buffer dx = arrays.random(n, dtype), dy = arrays.random(n, dtype), x = arrays.random(n, dtype, -3, 3);
         return [=](ExecContext& exec) { kernels_of(exec).gelu_backward(exec, dx, dy, x, kind); };
       }});
}

}  // namespace

void add_elementwise_cases(std::vector<KernelCase>& cases, const CaseSizes& sizes, DType dtype) {
  const std::int64_t tokens = sizes.tokens(), odd = sizes.odd_elems;
  add_copies(cases, dtype, sizes.unit_elems);
  add_copies(cases, dtype, odd);
  add_arithmetic(cases, dtype, tokens * sizes.width, fmt::format("{} x {}", tokens, sizes.width));
  add_arithmetic(cases, dtype, odd, fmt::format("{}", odd));
  add_accumulate(cases, dtype, sizes.unit_elems, DType::f32);
  if (dtype != DType::f32) add_accumulate(cases, dtype, sizes.unit_elems, dtype);
  add_int8(cases, dtype, sizes.unit_elems);
  for (const GeluKind kind : {GeluKind::tanh, GeluKind::erf})
    add_gelu(cases, dtype, 4 * tokens * sizes.width, fmt::format("{} x {}", tokens, 4 * sizes.width), kind);
  add_gelu(cases, dtype, odd, fmt::format("{}", odd), GeluKind::tanh);
}

}  // namespace zs::bench
