#if defined(ZS_ISA)
#include "kernels/cpu/isa_families.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/stream_store.h"

/// Embedding rows, and sums over rows.
namespace zs::cpu::ZS_ISA {
namespace {

constexpr std::int64_t kRowsAhead = 2;   // rows of a table in random order, which the processor cannot foresee
constexpr std::int64_t kColumns = 4096;  // columns summed together: long runs of memory, sums that fit the first cache

/// sums (width) := sum of the rows [begin, end), row after row: memory is read in one run, which processors fetch ahead
/// best.
template <class T>
void block_sums(float* sums, const T* dy, std::int64_t width, std::int64_t begin, std::int64_t end) {
  static_assert(kColumns % kPairFloats == 0);
  for (std::int64_t c = 0; c < width; ++c) sums[c] = 0.0f;
  for (std::int64_t first = 0; first < width; first += kColumns) {
    float* to = sums + first;
    for (std::int64_t row = begin; row < end; ++row) {
      const T* from = dy + row * width + first;
      for_each_pair<kOwnOrder<T>>(0, min_of(kColumns, width - first), [=](std::int64_t c, auto part) {
        fetch_ahead(from + c, part);
        store(to + c, load(to + c, part) + load(from + c, part), part);
      });
    }
  }
  if (kOwnOrder<T> == Order::apart) put_together(sums, width);
}

/// out (width) += in
template <class T, class G, class Fetch>
inline void add_row(T* out, const G* in, std::int64_t begin, std::int64_t end, Fetch fetch) {
  constexpr Order kOrder = sizeof(T) == sizeof(G) ? kOwnOrder<T> : Order::in_line;
  for_each_pair<kOrder>(begin, end, [=](std::int64_t c, auto part) {
    fetch(c, part);
    store(out + c, load(out + c, part) + load(in + c, part), part);
  });
}

/// Columns [begin, end) of every row that a token of args.ids names.
template <class T, class G>
void scatter_columns(const ScatterRows& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t width = args.rows.width;
  const auto row_of = [&](std::int64_t i) { return elements<T>(args.table) + args.ids[i] * width; };
  for (std::int64_t i = 0; i < args.rows.count; ++i) {
    if (args.ids[i] == args.padding) continue;
    const T* soon = row_of(min_of(i + kRowsAhead, args.rows.count - 1));
    add_row(row_of(i), elements<const G>(args.dy) + i * width, begin, end,
            [=](std::int64_t c, auto part) { fetch(soon + c, part); });
  }
}

/// Rows [begin, end) of a table whose row i mod period takes row i: each is done with before the next.
template <class T, class G>
void gather_rows(const ScatterRows& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t width = args.rows.width;
  for (std::int64_t row = begin; row < end; ++row) {
    T* out = elements<T>(args.table) + row * width;
    if (args.beta != 1.0f)
      for_each_pair<kOwnOrder<T>>(0, width, [=, beta = args.beta](std::int64_t c, auto part) {
        store(out + c, beta == 0.0f ? none(part) : load(out + c, part) * beta, part);
      });
    for (std::int64_t i = row; row < args.period && i < args.rows.count; i += args.period) {
      const G* in = elements<const G>(args.dy) + i * width;
      add_row(out, in, 0, width, [=](std::int64_t c, auto part) { fetch_ahead(in + c, part); });
    }
  }
}

void column_sums(int threads, float* out, float* parts, Data dy, Rows rows) {
  const RowBlocks blocks = row_blocks(rows.count);
  with_type(dy, [&](auto tag) {
    const auto* x = elements<const decltype(tag)>(dy);
    parallel_ranges(split_rows(threads, blocks.count, blocks.rows * rows.width),
                    [=](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t block = begin; block < end; ++block)
                        block_sums(parts + block * rows.width, x, rows.width, block * blocks.rows,
                                   min_of(rows.count, (block + 1) * blocks.rows));
                    });
  });
  sum_parts(out, parts, rows.width, blocks.count, rows.width);
}

void embedding(int threads, const Embedding& args) {
  with_type(args.out, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t width = args.rows.width, rows = args.rows.count;
    const bool is_streamed = streams<T>(args.out, rows * width, args.table, args.positions);
    parallel_ranges(split_rows(threads, rows, width), [=](std::int64_t begin, std::int64_t end) {
      const auto row_of = [&](std::int64_t i) { return elements<const T>(args.table) + args.ids[i] * width; };
      for (std::int64_t i = begin; i < end; ++i) {
        T* out = elements<T>(args.out) + i * width;
        if (args.positions.address == nullptr) {
          __builtin_memcpy(out, row_of(i), static_cast<std::size_t>(width) * sizeof(T));
          continue;
        }
        const T *position = elements<const T>(args.positions) + i % args.time * width, *row = row_of(i);
        const T* soon = row_of(min_of(i + kRowsAhead, rows - 1));
        store_range<kOwnOrder<T>>(out, 0, width, is_streamed, [=](std::int64_t c, auto part) {
          fetch(soon + c, part);
          return load(row + c, part) + load(position + c, part);
        });
      }
      end_streaming(is_streamed);
    });
  });
}

void scatter_rows(int threads, const ScatterRows& args) {
  const bool is_gathered = args.ids == nullptr;
  const std::int64_t width = args.rows.width, rows_each = args.rows.count / max_of(1, args.period) + 1;
  const Split columns{threads, width, max_of(1, 16384 / max_of(1, args.rows.count)), 32};
  const Split split = is_gathered ? split_rows(threads, args.table_rows, rows_each * width) : columns;
  with_type(args.table, [&](auto table_tag) {
    with_type(args.dy, [&](auto dy_tag) {
      using T = decltype(table_tag);
      using G = decltype(dy_tag);
      parallel_ranges(split, [=](std::int64_t begin, std::int64_t end) {
        is_gathered ? gather_rows<T, G>(args, begin, end) : scatter_columns<T, G>(args, begin, end);
      });
    });
  });
}

}  // namespace

void fill_rows(Isa& isa) {
  isa.column_sums = column_sums;
  isa.embedding = embedding;
  isa.scatter_rows = scatter_rows;
}

}  // namespace zs::cpu::ZS_ISA
#else
#include "kernels/checks.h"
#include "kernels/cpu/host.h"
#include "kernels/families.h"

namespace zs::cpu {
namespace {

Rows rows_of(const Buffer& buffer, std::int64_t width) { return {checks::rows_of(buffer, width), width}; }

std::int64_t bias_backward_scratch(std::int64_t rows, std::int64_t width) {
  return kFloat * (1 + row_blocks(rows).count) * width;
}

void bias_backward(ExecContext& ctx, Buffer dbias, Buffer dy, float beta) {
  const Rows rows = rows_of(dy, dbias.elems);
  checks::gradient("dbias", dbias, dy);
  float* sums = scratch(ctx, bias_backward_scratch(rows.count, rows.width));
  isa().column_sums(ctx.threads(), sums, sums + rows.width, data_of(dy), rows);
  store_gradient(ctx, dbias, sums, beta);
}

void embedding_forward(ExecContext& ctx, Buffer out, Buffer ids, Buffer table, Buffer positions, std::int64_t time) {
  if (ids.empty()) return;
  const checks::TableRows found = checks::embedding_forward(out, ids, table, positions, time);
  check_indices("token", ids.as<std::int32_t>(), ids.elems, found.table_rows);
  const Data no_positions{nullptr, table.dtype == DType::bf16};
  isa().embedding(ctx.threads(), {.out = data_of(out),
                                  .table = data_of(table),
                                  .positions = positions.empty() ? no_positions : data_of(positions),
                                  .ids = ids.as<std::int32_t>(),
                                  .rows = {found.tokens, found.width},
                                  .time = time});
}

void embedding_backward(ExecContext& ctx, Buffer dtable, Buffer ids, Buffer dy, std::int64_t width, float beta,
                        std::int32_t padding) {
  const checks::TableRows found = checks::embedding_backward(dtable, ids, dy, width);
  check_indices("token", ids.as<std::int32_t>(), ids.elems, found.table_rows);
  if (beta == 0.0f) {
    cpu_kernels().zero(ctx, dtable);
  } else if (beta != 1.0f) {
    cpu_kernels().scale(ctx, dtable, dtable, beta);
  }
  isa().scatter_rows(ctx.threads(), {.table = data_of(dtable),
                                     .dy = data_of(dy),
                                     .ids = ids.as<std::int32_t>(),
                                     .rows = {found.tokens, width},
                                     .table_rows = found.table_rows,
                                     .period = 0,
                                     .beta = 1.0f,
                                     .padding = padding});
}

void position_backward(ExecContext& ctx, Buffer dpositions, Buffer dy, std::int64_t time, std::int64_t width,
                       float beta) {
  const checks::TableRows found = checks::position_backward(dpositions, dy, time, width);
  isa().scatter_rows(ctx.threads(), {.table = data_of(dpositions),
                                     .dy = data_of(dy),
                                     .ids = nullptr,
                                     .rows = {found.tokens, width},
                                     .table_rows = found.table_rows,
                                     .period = time,
                                     .beta = beta,
                                     .padding = -1});
}

}  // namespace

void fill_rows(KernelTable& table) {
  table.scratch.bias_backward = bias_backward_scratch;
  table.bias_backward = bias_backward;
  table.embedding_forward = embedding_forward;
  table.embedding_backward = embedding_backward;
  table.position_backward = position_backward;
}

}  // namespace zs::cpu
#endif
