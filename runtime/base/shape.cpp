#include "runtime/base/shape.h"

#include <fmt/format.h>

#include "runtime/base/usage_error.h"

namespace zs {
namespace {

constexpr std::int64_t kMostElems = std::int64_t{1} << 59;  // so that their bytes, of 8 each, can be counted too

}  // namespace

Shape::Shape(std::span<const std::int64_t> dims) : rank_(static_cast<int>(dims.size())) {
  if (rank_ > kMaxDims)
    throw UsageError(fmt::format("a shape of {} dims", rank_), fmt::format("use at most {}", kMaxDims));
  for (int i = 0; i < rank_; ++i) {
    if (dims[i] < 0) throw UsageError(fmt::format("a shape whose dim {} is {}", i, dims[i]), "give it 0 or more");
    dims_[i] = dims[i];
  }
  std::int64_t elems = 1;
  for (const std::int64_t dim : dims)
    if (__builtin_mul_overflow(elems, dim, &elems) || elems > kMostElems)
      throw UsageError(fmt::format("a shape of {} has more elements than can be counted", str()),
                       "look for a size that is a mistake");
}

std::string Shape::str() const { return fmt::format("({})", fmt::join(dims(), ", ")); }

void Shape::refuse_dim(int i) const {
  throw UsageError(fmt::format("dim {} of a shape with {} dims, {}", i, rank_, str()),
                   "name a dim that it has; negative ones count from the end");
}

}  // namespace zs
