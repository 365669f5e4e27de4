#include "kernels/expert_exchange.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/checks.h"
#include "kernels/cpu/host.h"

/// Rows of experts that are dealt over ranks: copies of whole runs or rows, in an order that follows from the counts.
namespace zs::cpu {
namespace {

constexpr std::int64_t kWorthThreads = 32768;

std::int64_t* longs_of(const Buffer& buffer) {
  ZS_CHECK(buffer.device == DeviceKind::cpu && buffer.dtype == DType::i64, "{} {} counts, expected i64", buffer.elems,
           name_of(buffer.dtype));
  return buffer.as<std::int64_t>();
}

std::int32_t* indices_of(const Buffer& buffer) {
  ZS_CHECK(buffer.device == DeviceKind::cpu && buffer.dtype == DType::i32, "{} {} indices, expected i32", buffer.elems,
           name_of(buffer.dtype));
  return buffer.as<std::int32_t>();
}

void sum_counts(Buffer offsets, Buffer counts) {
  const std::int64_t experts = offsets.elems - 1, *const of = longs_of(counts);
  ZS_CHECK(experts > 0 && counts.elems % experts == 0, "{} counts of {} experts", counts.elems, experts);
  std::int64_t* const out = longs_of(offsets);
  std::fill_n(out, offsets.elems, std::int64_t{0});
  for (std::int64_t i = 0; i < counts.elems; ++i) out[i % experts + 1] += of[i];
  for (std::int64_t e = 0; e < experts; ++e) out[e + 1] += out[e];
}

/// Rows of one rank for one expert, and where they begin in either order.
struct Run {
  std::int64_t rows, by_rank, by_expert;
};

std::vector<Run> runs_of(const Buffer& counts, const Buffer& offsets) {
  const std::int64_t experts = offsets.elems - 1, *const of = longs_of(counts);
  std::vector<std::int64_t> next(longs_of(offsets), longs_of(offsets) + experts);
  std::vector<Run> runs;
  for (std::int64_t i = 0, row = 0; i < counts.elems; ++i) {
    std::int64_t& place = next[static_cast<std::size_t>(i % experts)];
    runs.push_back({of[i], row, place});
    place += of[i];
    row += of[i];
  }
  return runs;
}

/// Copies the runs of `from`, which begin at one of their places, to the other.
void copy_runs(ExecContext& ctx, const Buffer& to, const Buffer& from, const std::vector<Run>& runs, std::int64_t width,
               std::int64_t Run::*out, std::int64_t Run::*in) {
  checks::same_dtype(to, from);
  for (const Run& run : runs)
    ZS_CHECK(run.rows >= 0 && (std::max(run.*out, run.*in) + run.rows) * width <= std::min(to.elems, from.elems),
             "{} rows from {} on, and to {}, of {} elements", run.rows, run.*in, run.*out, from.elems);
  const std::int64_t bytes = width * size_of(from.dtype);
  auto* const target = static_cast<std::byte*>(to.data);
  const auto* const source = static_cast<const std::byte*>(from.data);
#pragma omp parallel for num_threads(ctx.threads()) if (from.elems > kWorthThreads)
  for (const Run& run : runs)
    std::memcpy(target + run.*out * bytes, source + run.*in * bytes, static_cast<std::size_t>(run.rows * bytes));
}

void order_by_expert(ExecContext& ctx, Buffer out, Buffer in, Buffer counts, Buffer offsets, std::int64_t width) {
  copy_runs(ctx, out, in, runs_of(counts, offsets), width, &Run::by_expert, &Run::by_rank);
}

void order_by_rank(ExecContext& ctx, Buffer out, Buffer in, Buffer counts, Buffer offsets, std::int64_t width) {
  copy_runs(ctx, out, in, runs_of(counts, offsets), width, &Run::by_rank, &Run::by_expert);
}

/// By counting, as sort_rows.
void select_rows(const SortedRows& rows, Buffer ids, std::int64_t first) {
  const std::int32_t* const in = indices_of(ids);
  std::int32_t *const order = indices_of(rows.order), *const places = indices_of(rows.places);
  ZS_CHECK(ids.elems <= std::numeric_limits<std::int32_t>::max() && rows.places.elems == ids.elems,
           "{} places of {} rows", rows.places.elems, ids.elems);
  const std::int64_t experts = rows.offsets.elems - 1;
  std::int64_t* const offsets = longs_of(rows.offsets);
  const auto is_own = [&](std::int64_t i) { return in[i] >= first && in[i] < first + experts; };
  std::fill_n(offsets, experts + 1, std::int64_t{0});
  for (std::int64_t i = 0; i < ids.elems; ++i)
    if (is_own(i)) ++offsets[in[i] - first + 1];
  for (std::int64_t e = 0; e < experts; ++e) offsets[e + 1] += offsets[e];
  ZS_CHECK(offsets[experts] <= rows.order.elems, "{} rows, room for {}", offsets[experts], rows.order.elems);
  std::vector<std::int64_t> next(offsets, offsets + experts);
  for (std::int64_t i = 0; i < ids.elems; ++i) {
    places[i] = -1;
    if (!is_own(i)) continue;
    const std::int64_t place = next[static_cast<std::size_t>(in[i] - first)]++;
    order[place] = static_cast<std::int32_t>(i);
    places[i] = static_cast<std::int32_t>(place);
  }
}

void gather_selected(ExecContext& ctx, Buffer y, Buffer x, Buffer order, Buffer offsets, std::int64_t chosen,
                     std::int64_t width) {
  checks::same_dtype(y, x);
  const std::int64_t rows = longs_of(offsets)[offsets.elems - 1], tokens = x.elems / std::max<std::int64_t>(width, 1);
  ZS_CHECK(y.elems >= rows * width && order.elems >= rows, "room for {} elements and {} places of {} rows", y.elems,
           order.elems, rows);
  const std::int32_t* const at = indices_of(order);
  check_indices("row", at, rows, tokens * chosen);
  const std::int64_t bytes = width * size_of(x.dtype);
  const auto* const from = static_cast<const std::byte*>(x.data);
  auto* const to = static_cast<std::byte*>(y.data);
#pragma omp parallel for num_threads(ctx.threads()) if (rows * width > kWorthThreads)
  for (std::int64_t r = 0; r < rows; ++r)
    std::memcpy(to + r * bytes, from + at[r] / chosen * bytes, static_cast<std::size_t>(bytes));
}

}  // namespace
}  // namespace zs::cpu

namespace zs {

const ExpertExchangeKernels& expert_exchange_kernels() {
  static constexpr ExpertExchangeKernels kernels{cpu::sum_counts, cpu::order_by_expert, cpu::order_by_rank,
                                                 cpu::select_rows, cpu::gather_selected};
  return kernels;
}

}  // namespace zs
