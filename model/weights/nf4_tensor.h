#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/weights/quantized_tensor.h"

namespace zs {

/// A tensor that bitsandbytes has saved in NF4, in blocks of 64 (runtime/base/nf4_blocks.h): codes, two a byte, by the
/// tensor's own name, and beside it NAME.absmax, NAME.quant_map and NAME.quant_state.bitsandbytes__nf4, which is JSON.
/// Magnitudes are f32, or of 8 bits in blocks of their own ("double quantization").
class Nf4Tensor final : public QuantizedTensor {
 public:
  /// null: the tensor is not in NF4. Error(model) where it is in a way that is not read.
  static std::shared_ptr<const Nf4Tensor> find(WeightFiles& files, const std::string& name);

  std::vector<std::string> others() const override;
  void read(WeightFiles& files, std::int64_t first, std::int64_t count, float* out) const override;

 private:
  Nf4Tensor(WeightFiles& files, std::string name);
  void read_state(WeightFiles& files, const std::string& file);
  void check_tensor(const WeightFiles& files, const std::string& name, FileDType dtype, std::int64_t elems) const;
  /// Magnitudes of so many blocks.
  std::vector<float> magnitudes(WeightFiles& files, std::int64_t first, std::int64_t count) const;

  std::string name_;
  bool is_nested_ = false;               // magnitudes are of 8 bits
  std::int64_t nested_block_elems_ = 1;  // magnitudes of a block of theirs
  float nested_offset_ = 0;
};

}  // namespace zs
