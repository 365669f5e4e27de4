#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/weights/weight_files.h"

namespace zs {

/// A tensor whose values are saved in blocks, as codes and the blocks' scales: Nf4Tensor or Mxfp4Tensor. A value; the
/// files outlive it.
class QuantizedTensor {
 public:
  virtual ~QuantizedTensor() = default;
  QuantizedTensor(const QuantizedTensor&) = delete;
  QuantizedTensor& operator=(const QuantizedTensor&) = delete;

  /// Tensor whose codes the files have by this name; null: they have it as numbers, or not at all. Error(model) where
  /// it is quantized in a way that is not read.
  static std::shared_ptr<const QuantizedTensor> find(WeightFiles& files, const std::string& codes);

  const std::vector<std::int64_t>& shape() const { return shape_; }
  /// True if its rows are those of the products, though files of numbers have the tensor transposed.
  virtual bool is_by_rows() const { return false; }
  /// Names of the tensors beside it.
  virtual std::vector<std::string> others() const = 0;
  /// Elements [first, first + count), decoded.
  virtual void read(WeightFiles& files, std::int64_t first, std::int64_t count, float* out) const = 0;

 protected:
  QuantizedTensor() = default;

  std::vector<std::int64_t> shape_;
};

}  // namespace zs
