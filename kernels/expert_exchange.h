#pragma once

#include <cstdint>

#include "kernels/expert_kernels.h"

namespace zs {

/// Kernels of experts that are dealt over ranks. Rows that arrive from others lie in runs, rank after rank and in each
/// of these expert after expert; counts i64 (ranks, experts) says how many. A run has any length, also none. Buffers of
/// rows may have room for more, which stays as it is. On the CPU; the same bits at any number of threads.
struct ExpertExchangeKernels {
  /// offsets i64 (experts + 1) := where the rows of each expert begin, of all ranks together
  void (*sum_counts)(Buffer offsets, Buffer counts);
  /// out (rows, width) := the rows of `in`, expert after expert and in each rank after rank
  void (*order_by_expert)(ExecContext& ctx, Buffer out, Buffer in, Buffer counts, Buffer offsets, std::int64_t width);
  /// Inverse of that.
  void (*order_by_rank)(ExecContext& ctx, Buffer out, Buffer in, Buffer counts, Buffer offsets, std::int64_t width);
  /// Sorts the rows of some experts, from `first` on and as many as rows.offsets are of, among those that ids i32
  /// (tokens, chosen) has: as ExpertKernels::sort_rows, but that all other rows have place -1, which combine_rows and
  /// combine_backward leave out. order may have room for more; shares stay as they are.
  void (*select_rows)(const SortedRows& rows, Buffer ids, std::int64_t first);
  /// y (rows, width) := for each row its token's of x, as ExpertKernels::gather_rows: as many rows as offsets says
  void (*gather_rows)(ExecContext& ctx, Buffer y, Buffer x, Buffer order, Buffer offsets, std::int64_t chosen,
                      std::int64_t width);
};

const ExpertExchangeKernels& expert_exchange_kernels();

}  // namespace zs
