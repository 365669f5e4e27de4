#include "runtime/tensor/scatter.h"

#include "runtime/base/usage_error.h"
#include "runtime/tensor/arithmetic.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/layout.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/ops.h"
#include "runtime/tensor/strided.h"

namespace zs {
namespace {

LineDims added_line_dims(const Shape& shape, int dim, std::int64_t count, bool each_its_own) {
  LineDims dims{1, shape[dim], count, 1, each_its_own};
  for (int d = 0; d < dim; ++d) dims.outer *= shape[d];
  for (int d = dim + 1; d < shape.rank(); ++d) dims.inner *= shape[d];
  return dims;
}

/// Sums of source's lines, in a tensor of this shape.
Tensor sums_at(const char* op, const Shape& shape, int dim, const Tensor& ids, const Tensor& source,
               bool each_its_own) {
  Context& context = source.context();
  Tensor sums = Tensor::empty(context, shape, DType::f32);
  const LineDims dims = added_line_dims(shape, dim, source.shape()[dim], each_its_own);
  const Buffer out = sums.buffer(), in = source.buffer(), at = ids.buffer();
  if (sums.numel() > 0)
    context.launch({"add_lines", {in, at}, {out}},
                   [&kernels = context.kernels(), out, in, at, dims](ExecContext& exec) {
                     kernels.add_lines(exec, out, in, at, dims);
                   });
  record_op(sums, op, {source}, {}, [ids = ids.detach(), dim, each_its_own, dtype = source.dtype()](const Tensor& dy) {
    const NoGradGuard guard(dy.context());
    return std::vector<Tensor>{cast(each_its_own ? gather(dy, dim, ids) : index_select(dy, dim, ids), dtype)};
  });
  return sums;
}

void require_pair(const char* op, const Tensor& x, const Tensor& ids, const Tensor& source) {
  require_float(op, "x", x);
  require_float(op, "source", source);
  require_ids(op, "ids", ids);
}

Tensor added(const char* op, const Tensor& x, int dim, const Tensor& ids, const Tensor& source, bool each_its_own) {
  if (source.dtype() != x.dtype() || source.shape().rank() != x.shape().rank() ||
      with_size(source.shape(), dim, 0) != with_size(x.shape(), dim, 0))
    throw UsageError(fmt::format("op {} along dim {}: {} to {}", op, dim, source.describe(), x.describe()),
                     "they have one dtype, and one size in every other dim");
  const Tensor sums = sums_at(op, x.shape(), dim, ids, source, each_its_own);
  return cast(add(cast(x, DType::f32), sums), x.dtype());
}

}  // namespace

Tensor scatter_add(const Tensor& x, int dim, const Tensor& ids, const Tensor& source) {
  require_pair("scatter_add", x, ids, source);
  const int d = dim_of("scatter_add", x.shape(), dim);
  if (ids.shape() != source.shape())
    throw UsageError(fmt::format("op scatter_add: ids {} for {}", ids.describe(), source.describe()),
                     "give an id for each element");
  return added("scatter_add", x, d, ids, source, true);
}

Tensor index_add(const Tensor& x, int dim, const Tensor& ids, const Tensor& source) {
  require_pair("index_add", x, ids, source);
  const int d = dim_of("index_add", x.shape(), dim);
  if (ids.shape().rank() != 1 || source.shape().rank() != x.shape().rank() || ids.numel() != source.shape()[d])
    throw UsageError(fmt::format("op index_add along dim {}: ids {} for {}", d, ids.describe(), source.describe()),
                     "give an id for each line, or scatter_add");
  return added("index_add", x, d, ids, source, false);
}

Tensor segment_mean(const Tensor& x, const Tensor& ids, std::int64_t groups) {
  require_pair("segment_mean", x, ids, x);
  if (x.shape().rank() == 0 || ids.shape().rank() != 1 || ids.numel() != x.shape()[0] || groups < 1)
    throw UsageError(fmt::format("op segment_mean: ids {} for {}, of {} groups", ids.describe(), x.describe(), groups),
                     "give an id for each line of the first dim");
  const Tensor sums = sums_at("segment_mean", with_size(x.shape(), 0, groups), 0, ids, x, false);
  std::vector<std::int64_t> ones(static_cast<std::size_t>(x.shape().rank()), 1);
  Tensor counts;
  {
    const NoGradGuard guard(x.context());
    ones[0] = ids.numel();
    const Tensor each = Tensor::from_host(x.context(), Shape(std::span<const std::int64_t>(ones)),
                                          std::vector<float>(static_cast<std::size_t>(ids.numel()), 1.0f));
    counts = clamp(sums_at("segment_mean", with_size(each.shape(), 0, groups), 0, ids, each, false), 1, 3e38f);
  }
  return cast(sums / counts, x.dtype());
}

}  // namespace zs
