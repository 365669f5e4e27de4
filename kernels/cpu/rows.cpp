#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/vec.h"

/// Embedding rows, and sums over rows.
namespace zs::cpu::ZS_ISA {
namespace {

constexpr std::int64_t kRowsAhead = 2;   // rows of a table in random order, which the processor cannot foresee
constexpr std::int64_t kColumns = 4096;  // columns summed together: long runs of memory, sums that fit the first cache

/// sums (width) := sum of the rows [begin, end), row after row: memory is read in one run, which processors fetch ahead best.
template <class T>
void block_sums(float* sums, const T* dy, std::int64_t width, std::int64_t begin, std::int64_t end) {
  for (std::int64_t c = 0; c < width; ++c) sums[c] = 0.0f;
  for (std::int64_t first = 0; first < width; first += kColumns) {
    float* to = sums + first;
    for (std::int64_t row = begin; row < end; ++row) {
      const T* from = dy + row * width + first;
      for_each_vec(0, min_of(kColumns, width - first),
                   [=](std::int64_t c, auto part) { store(to + c, load(to + c, part) + load(from + c, part), part); });
    }
  }
}

template <class T, class G>
void scatter_columns(const ScatterRows& args, std::int64_t begin, std::int64_t end) {
  T* table = elements<T>(args.table);
  const G* dy = elements<const G>(args.dy);
  const std::int64_t width = args.rows.width;
  for (std::int64_t row = 0; args.beta != 1.0f && row < args.table_rows; ++row) {
    T* out = table + row * width;
#pragma omp simd
    for (std::int64_t c = begin; c < end; ++c) out[c] = args.beta == 0.0f ? T{} : from_float<T>(args.beta * to_float(out[c]));
  }
  const auto row_of = [&](std::int64_t i) { return table + (args.ids != nullptr ? args.ids[i] : i % args.period) * width; };
  for (std::int64_t i = 0; i < args.rows.count; ++i) {
    T* out = row_of(i);
    const G* in = dy + i * width;
    const T* soon = row_of(min_of(i + kRowsAhead, args.rows.count - 1));
    for_each_vec(begin, end, [=](std::int64_t c, auto part) {
      __builtin_prefetch(soon + c, 1);
      store(out + c, load(out + c, part) + load(in + c, part), part);
    });
  }
}

}  // namespace

void column_sums(int threads, float* out, float* parts, Data dy, Rows rows) {
  const RowBlocks blocks = row_blocks(rows.count);
  with_type(dy, [&](auto tag) {
    const auto* x = elements<const decltype(tag)>(dy);
    parallel_ranges(split_rows(threads, blocks.count, blocks.rows * rows.width), [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t block = begin; block < end; ++block)
        block_sums(parts + block * rows.width, x, rows.width, block * blocks.rows, min_of(rows.count, (block + 1) * blocks.rows));
    });
  });
  fold_parts(out, parts, rows.width, blocks.count, rows.width);
}

void embedding(int threads, const Embedding& args) {
  with_type(args.out, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t width = args.rows.width;
    parallel_ranges(split_rows(threads, args.rows.count, width), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        T* out = elements<T>(args.out) + i * width;
        const T* row = elements<const T>(args.table) + args.ids[i] * width;
        if (args.positions.address == nullptr) {
          __builtin_memcpy(out, row, static_cast<std::size_t>(width) * sizeof(T));
          continue;
        }
        const T* position = elements<const T>(args.positions) + i % args.time * width;
#pragma omp simd
        for (std::int64_t c = 0; c < width; ++c) out[c] = from_float<T>(to_float(row[c]) + to_float(position[c]));
      }
    });
  });
}

void scatter_rows(int threads, const ScatterRows& args) {
  const std::int64_t touched = args.rows.count + (args.beta == 1.0f ? 0 : args.table_rows);
  const Split split{threads, args.rows.width, max_of(1, 16384 / max_of(1, touched)), 32};
  with_type(args.table, [&](auto table_tag) {
    with_type(args.dy, [&](auto dy_tag) {
      using T = decltype(table_tag);
      using G = decltype(dy_tag);
      parallel_ranges(split, [&](std::int64_t begin, std::int64_t end) { scatter_columns<T, G>(args, begin, end); });
    });
  });
}

}  // namespace zs::cpu::ZS_ISA
