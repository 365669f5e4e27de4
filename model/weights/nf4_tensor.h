#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/weights/weight_files.h"

namespace zs {

/// A tensor that bitsandbytes has saved in NF4, in blocks of 64 (runtime/base/nf4_blocks.h): codes, two a byte, by the
/// tensor's own name, and beside it NAME.absmax, NAME.quant_map and NAME.quant_state.bitsandbytes__nf4, which is JSON.
/// Magnitudes are f32, or of 8 bits in blocks of their own ("double quantization"). A value; the files outlive it.
class Nf4Tensor {
 public:
  /// null: the tensor is not in NF4. Error(model) where it is in a way that is not read.
  static std::shared_ptr<const Nf4Tensor> find(WeightFiles& files, const std::string& name);

  const std::vector<std::int64_t>& shape() const { return shape_; }
  /// Names of the tensors beside it.
  std::vector<std::string> others() const;
  /// Elements [first, first + count), decoded.
  void read(WeightFiles& files, std::int64_t first, std::int64_t count, float* out) const;

 private:
  Nf4Tensor(WeightFiles& files, std::string name);
  void read_state(WeightFiles& files, const std::string& file);
  void check_tensor(const WeightFiles& files, const std::string& name, FileDType dtype, std::int64_t elems) const;
  /// Magnitudes of so many blocks.
  std::vector<float> magnitudes(WeightFiles& files, std::int64_t first, std::int64_t count) const;

  std::string name_;
  std::vector<std::int64_t> shape_;
  bool is_nested_ = false;               // magnitudes are of 8 bits
  std::int64_t nested_block_elems_ = 1;  // magnitudes of a block of theirs
  float nested_offset_ = 0;
};

}  // namespace zs
