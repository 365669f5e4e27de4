#include "bench/kernels/kernel_case.h"

/// The kernels that general ops are made of, attention of a new token, and dropout.
namespace zs::bench {
namespace {

/// x + bias, the bias broadcast over rows.
void add_map(std::vector<KernelCase>& cases, DType dtype, std::int64_t rows, std::int64_t width) {
  cases.push_back({.kernel = "map",
                   .shape = fmt::format("add {} x {} and {}", rows, width, width),
                   .dtype = dtype,
                   .bytes = bytes_of(2 * rows * width + width, dtype),
                   .make = [=](Arrays& arrays, int) {
                     const Map map{.op = MapOp::add,
                                   .shape = {rows, width},
                                   .out = {arrays.random(rows * width, dtype), {width, 1}},
                                   .in = {Strided{arrays.random(rows * width, dtype), {width, 1}},
                                          Strided{arrays.random(width, dtype), {0, 1}}}};
                     return [=](ExecContext& exec) { kernels_of(exec).map(exec, map); };
                   }});
}

/// Sums of rows.
void add_reduce(std::vector<KernelCase>& cases, DType dtype, std::int64_t rows, std::int64_t width) {
  cases.push_back({.kernel = "reduce",
                   .shape = fmt::format("sum of rows {} x {}", rows, width),
                   .dtype = dtype,
                   .bytes = bytes_of(rows * width + rows, dtype),
                   .make = [=](Arrays& arrays, int) {
                     const Reduce reduce{.op = ReduceKind::sum,
                                         .kept = {rows},
                                         .reduced = {width},
                                         .out = arrays.random(rows, dtype),
                                         .in = arrays.random(rows * width, dtype),
                                         .kept_strides = {width},
                                         .reduced_strides = {1}};
                     return [=](ExecContext& exec) { kernels_of(exec).reduce(exec, reduce); };
                   }});
}

/// Rows of a matrix by ids, and their gradient.
void add_lines(std::vector<KernelCase>& cases, DType dtype, std::int64_t rows, std::int64_t width) {
  const LineDims dims{1, rows, rows, width};
  const auto add = [&](const char* kernel, double moved, auto make) {
    cases.push_back({.kernel = kernel,
                     .shape = fmt::format("{} of {} x {}", rows, rows, width),
                     .dtype = dtype,
                     .bytes = moved + bytes_of(rows, DType::i32),
                     .make = make});
  };
  add("take_lines", 2 * bytes_of(rows * width, dtype), [=](Arrays& arrays, int set) {
    const Buffer y = arrays.random(rows * width, dtype), x = arrays.random(rows * width, dtype),
                 ids = arrays.ids(rows, rows, set);
    return [=](ExecContext& exec) { kernels_of(exec).take_lines(exec, y, x, ids, dims); };
  });
  add("add_lines", bytes_of(rows * width, dtype) + 2 * bytes_of(rows * width, kF32), [=](Arrays& arrays, int set) {
    const Buffer x = arrays.random(rows * width, kF32), y = arrays.random(rows * width, dtype),
                 ids = arrays.ids(rows, rows, set);
    return [=](ExecContext& exec) { kernels_of(exec).add_lines(exec, x, y, ids, dims); };
  });
}

/// The first elements in order of each row, and running sums along rows.
void add_whole_lines(std::vector<KernelCase>& cases, DType dtype, std::int64_t rows, std::int64_t width,
                     std::int64_t kept) {
  const LineDims ordered{rows, width, kept, 1}, summed{rows, width, width, 1};
  cases.push_back({.kernel = "order_lines",
                   .shape = fmt::format("{} of {} x {}", kept, rows, width),
                   .dtype = dtype,
                   .bytes = bytes_of(rows * width, dtype) + bytes_of(rows * kept, DType::i32),
                   .make = [=](Arrays& arrays, int) {
                     const Buffer ids = arrays.ids(rows * kept, width, 0), x = arrays.random(rows * width, dtype);
                     return [=](ExecContext& exec) { kernels_of(exec).order_lines(exec, ids, x, ordered, true); };
                   }});
  cases.push_back({.kernel = "sum_lines",
                   .shape = fmt::format("{} x {}", rows, width),
                   .dtype = dtype,
                   .bytes = 2 * bytes_of(rows * width, dtype),
                   .make = [=](Arrays& arrays, int) {
                     const Buffer y = arrays.random(rows * width, dtype), x = arrays.random(rows * width, dtype);
                     return [=](ExecContext& exec) { kernels_of(exec).sum_lines(exec, y, x, summed, false); };
                   }});
}

void add_dropout(std::vector<KernelCase>& cases, DType dtype, std::int64_t n) {
  cases.push_back({.kernel = "dropout",
                   .shape = fmt::format("{}", n),
                   .dtype = dtype,
                   .bytes = 2 * bytes_of(n, dtype),
                   .make = [=](Arrays& arrays, int set) {
                     const Buffer out = arrays.random(n, dtype), in = arrays.random(n, dtype);
                     const DropoutMask mask{.key = static_cast<std::uint64_t>(set), .first = 0, .probability = 0.1f};
                     return [=](ExecContext& exec) { kernels_of(exec).dropout(exec, out, in, mask); };
                   }});
}

/// One new token behind `seen` others, whose keys and values are read once; scores are written once, and hardly leave
/// the caches.
void add_cached(std::vector<KernelCase>& cases, DType dtype, std::int64_t heads, std::int64_t seen) {
  constexpr std::int64_t kHeadDim = 64;
  const AttentionDims dims{1, 1, heads, kHeadDim};
  const std::int64_t row = 2 * heads * kHeadDim, tokens = seen + 1, width = heads * kHeadDim,
                     scores = heads * (tokens + kHeadDim);
  cases.push_back(
      {.kernel = "attention_cached",
       .shape = fmt::format("1 token behind {}, {} heads of {}", seen, heads, kHeadDim),
       .dtype = dtype,
       .bytes = bytes_of(tokens * row + width + qkv_width_of(dims), dtype) + bytes_of(scores, kF32),
       .make = [=](Arrays& arrays, int) {
         const Buffer out = arrays.random(width, dtype), work = arrays.zeros(scores, kF32),
                      qkv = arrays.random(qkv_width_of(dims), dtype), cache = arrays.random(tokens * row, dtype);
         return [=](ExecContext& exec) { kernels_of(exec).attention_cached(exec, out, work, qkv, cache, dims, seen); };
       }});
}

}  // namespace

void add_general_cases(std::vector<KernelCase>& cases, const CaseSizes& sizes, DType dtype) {
  const std::int64_t tokens = sizes.tokens();
  add_map(cases, dtype, tokens, sizes.width);
  add_map(cases, dtype, sizes.odd_rows, sizes.odd_width);
  add_reduce(cases, dtype, tokens, sizes.width);
  add_reduce(cases, dtype, sizes.odd_rows, sizes.odd_width);
  add_lines(cases, dtype, tokens, sizes.width);
  add_whole_lines(cases, dtype, tokens, sizes.width, 8);
  add_dropout(cases, dtype, tokens * sizes.width);
  add_dropout(cases, dtype, sizes.odd_elems);
  add_cached(cases, dtype, sizes.heads, tokens);
}

}  // namespace zs::bench
