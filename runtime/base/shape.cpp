#include "runtime/base/shape.h"

#include <fmt/format.h>

#include "runtime/base/usage_error.h"

namespace zs {

Shape::Shape(std::span<const std::int64_t> dims) : rank_(static_cast<int>(dims.size())) {
  if (rank_ > kMaxDims)
    throw UsageError(fmt::format("a shape of {} dims", rank_), fmt::format("use at most {}", kMaxDims));
  for (int i = 0; i < rank_; ++i) {
    if (dims[i] < 0) throw UsageError(fmt::format("a shape whose dim {} is {}", i, dims[i]), "give it 0 or more");
    dims_[i] = dims[i];
  }
}

std::string Shape::str() const { return fmt::format("({})", fmt::join(dims(), ", ")); }

void Shape::refuse_dim(int i) const {
  throw Error(ExitCode::internal, fmt::format("check failed: dim {} of a shape with {} dims", i, rank_));
}

}  // namespace zs
