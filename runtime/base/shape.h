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
  explicit Shape(std::span<const std::int64_t> dims);

  int rank() const { return rank_; }
  std::int64_t numel() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= dims_[i];
    return n;
  }
  /// Size of dim `i`; negative counts from the end.
  std::int64_t operator[](int i) const {
    const int dim = i < 0 ? i + rank_ : i;
    if (dim < 0 || dim >= rank_) [[unlikely]]
      refuse_dim(i);
    return dims_[dim];
  }
  std::span<const std::int64_t> dims() const { return {dims_.data(), static_cast<std::size_t>(rank_)}; }
  bool operator==(const Shape&) const = default;
  std::string str() const;

 private:
  [[noreturn]] void refuse_dim(int i) const;

  int rank_ = 0;
  std::array<std::int64_t, kMaxDims> dims_{};
};

}  // namespace zs
