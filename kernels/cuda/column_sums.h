#pragma once

#include "kernels/cuda/launch.h"

/// Sums of columns, which gradients of biases and of norms are.
namespace zs::cuda {

/// Parts of the rows whose columns are summed apart, so that the GPU is busy and the parts fit into the workspace; they
/// follow from the shape alone.
struct Parts {
  std::int64_t count, rows_each;
};
/// sums: of each column.
Parts parts_of(const Rows& rows, std::int64_t sums);
/// Each part's sums, in the workspace.
float* sum_columns(ExecContext& ctx, ColumnSumsArgs args, const Parts& parts, std::int64_t sums);
/// out (width) := the sums of the columns' parts from `first` of the workspace on, + beta * out
void add_parts(ExecContext& ctx, const Buffer& out, const float* first, std::int64_t count, std::int64_t stride,
               float beta);

}  // namespace zs::cuda
