#pragma once

#include <initializer_list>

#include "kernels/cuda/launch.h"

/// Sums of columns, which gradients of biases and of norms are.
namespace zs::cuda {

/// The columns' sums of parts of the rows, in the stream's workspace. How many parts there are follows from the shape.
struct ColumnSums {
  float* parts;              // (count, sums, width)
  std::int64_t count, sums;  // sums: of each column
};
/// Room for at most so many parts, with rows_each rows or more.
ColumnSums make_column_sums(ExecContext& ctx, const Rows& rows, std::int64_t sums, std::int64_t most,
                            std::int64_t rows_each);
void sum_columns(ExecContext& ctx, const std::string& kernel, ColumnSumsArgs args, const ColumnSums& into);
/// outs (width each) := the sums over all parts, + beta * outs
void add_parts(ExecContext& ctx, const ColumnSums& sums, std::initializer_list<Buffer> outs, float beta);

}  // namespace zs::cuda
