#include "runtime/base/shape.h"

#include <fmt/format.h>

namespace zs {

Shape::Shape(std::span<const std::int64_t> dims) : rank_(static_cast<int>(dims.size())) {
  ZS_CHECK(rank_ <= kMaxDims, "a shape has at most {} dims, got {}", kMaxDims, rank_);
  for (int i = 0; i < rank_; ++i) {
    ZS_CHECK(dims[i] >= 0, "dim {} is {}, expected 0 or more", i, dims[i]);
    dims_[i] = dims[i];
  }
}

std::string Shape::str() const { return fmt::format("({})", fmt::join(dims(), ", ")); }

void Shape::refuse_dim(int i) const {
  throw Error(ExitCode::internal, fmt::format("check failed: dim {} of a shape with {} dims", i, rank_));
}

}  // namespace zs
