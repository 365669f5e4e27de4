#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/vec.h"

/// Embedding rows, and sums over rows.
namespace zs::cpu::ZS_ISA {
namespace {

constexpr std::int64_t kColumns = 1024;  // columns summed together: long enough runs of memory, short enough for the first cache
constexpr std::int64_t kRowBlock = 32;   // rows summed before they join the total

/// part (columns) += rows[0], then rows[1], ... of kRows rows, `width` elements apart.
template <int kRows, class T>
void add_rows(float* part, const T* rows, std::int64_t width, std::int64_t columns) {
#pragma omp simd
  for (std::int64_t c = 0; c < columns; ++c) {
    float sum = part[c];
    for (int r = 0; r < kRows; ++r) sum += to_float(rows[r * width + c]);
    part[c] = sum;
  }
}

template <class T>
void column_sums_of(float* out, const T* dy, Rows rows, std::int64_t begin, std::int64_t end) {
  for (std::int64_t first = begin; first < end; first += kColumns) {
    const std::int64_t columns = min_of(kColumns, end - first);
    float* total = out + first;
    for (std::int64_t c = 0; c < columns; ++c) total[c] = 0.0f;
    for (std::int64_t block = 0; block < rows.count; block += kRowBlock) {
      alignas(64) float part[kColumns];
      for (std::int64_t c = 0; c < columns; ++c) part[c] = 0.0f;
      const std::int64_t block_end = min_of(rows.count, block + kRowBlock);
      std::int64_t row = block;
      for (; row + 4 <= block_end; row += 4) add_rows<4>(part, dy + row * rows.width + first, rows.width, columns);
      for (; row < block_end; ++row) add_rows<1>(part, dy + row * rows.width + first, rows.width, columns);
      for (std::int64_t c = 0; c < columns; ++c) total[c] += part[c];
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
  for (std::int64_t i = 0; i < args.rows.count; ++i) {
    T* out = table + (args.ids != nullptr ? args.ids[i] : i % args.period) * width;
    const G* in = dy + i * width;
#pragma omp simd
    for (std::int64_t c = begin; c < end; ++c) out[c] = from_float<T>(to_float(out[c]) + to_float(in[c]));
  }
}

}  // namespace

void column_sums(int threads, float* out, Data dy, Rows rows) {
  const Split split{threads, rows.width, max_of(1, 16384 / max_of(1, rows.count)), 16};
  with_type(dy, [&](auto tag) {
    using T = decltype(tag);
    parallel_ranges(split, [=](std::int64_t begin, std::int64_t end) { column_sums_of(out, elements<const T>(dy), rows, begin, end); });
  });
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
