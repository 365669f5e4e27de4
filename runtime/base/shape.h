#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "runtime/base/check.h"

namespace zs {

/// The sizes of a tensor's dims, outermost first; at most kMaxDims of them. An empty shape is a scalar (numel 1).
class Shape {
 public:
  static constexpr int kMaxDims = 6;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims) : Shape(std::span<const std::int64_t>(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const std::int64_t> dims) : rank_(static_cast<int>(dims.size())) {
    ZS_CHECK(rank_ <= kMaxDims, "a shape has at most {} dims, got {}", kMaxDims, rank_);
    for (int i = 0; i < rank_; ++i) {
      ZS_CHECK(dims[i] >= 0, "dim {} is {}, expected 0 or more", i, dims[i]);
      dims_[i] = dims[i];
    }
  }

  int rank() const { return rank_; }
  std::int64_t numel() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= dims_[i];
    return n;
  }
  /// Size of dim `i`; negative counts from the end.
  std::int64_t operator[](int i) const {
    const int dim = i < 0 ? i + rank_ : i;
    ZS_CHECK(dim >= 0 && dim < rank_, "dim {} of a shape with {} dims", i, rank_);
    return dims_[dim];
  }
  std::span<const std::int64_t> dims() const { return {dims_.data(), static_cast<std::size_t>(rank_)}; }
  bool operator==(const Shape&) const = default;
  std::string str() const {
    std::string text = "(";
    for (const std::int64_t dim : dims()) text.append(text.size() > 1 ? ", " : "").append(std::to_string(dim));
    return text + ")";
  }

 private:
  int rank_ = 0;
  std::array<std::int64_t, kMaxDims> dims_{};
};

}  // namespace zs
