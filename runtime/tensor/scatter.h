#pragma once

#include "runtime/tensor/tensor.h"

namespace zs {

// Additions at indices: the mirrors of gather and index_select (layout.h), f32 or bf16, summed in f32 in the order of
// the indices.

/// x with source[...] added to element ids[...] of x's line along the dim, for each element of source; ids i32, of
/// source's shape, which is x's but for this dim. A place may be named several times.
Tensor scatter_add(const Tensor& x, int dim, const Tensor& ids, const Tensor& source);
/// x with line i of source added to line ids[i] of the dim; ids (n) i32.
Tensor index_add(const Tensor& x, int dim, const Tensor& ids, const Tensor& source);
/// Means of the lines of x, (n, ...), that have one id each, ids (n) i32: (groups, ...); 0 where a group has none.
Tensor segment_mean(const Tensor& x, const Tensor& ids, std::int64_t groups);

}  // namespace zs
