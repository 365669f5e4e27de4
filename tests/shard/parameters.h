#pragma once

#include <memory>
#include <vector>

#include "runtime/tensor/parameter.h"

namespace zs::test {

/// Parameters whose names say their place; they own themselves, as a model's do.
class Parameters {
 public:
  explicit Parameters(const std::vector<Shape>& shapes) {
    for (const Shape& shape : shapes) {
      const bool has_decay = shape.rank() > 1;
      owned_.push_back(
          std::make_unique<Parameter>(fmt::format("p{}", owned_.size()), shape, Init{0.02f, 0}, has_decay));
      pointers_.push_back(owned_.back().get());
    }
  }
  const std::vector<Parameter*>& pointers() const { return pointers_; }

 private:
  std::vector<std::unique_ptr<Parameter>> owned_;
  std::vector<Parameter*> pointers_;
};

}  // namespace zs::test
