#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/weights/quantized_tensor.h"

namespace zs {

/// A tensor in MXFP4 (Open Compute Project 2023, "Microscaling Formats (MX)" 1.0, E2M1 with scales E8M0), as gpt-oss is
/// published: NAME_blocks, u8 (..., blocks, 16), has two codes a byte, the first in its lower half, and NAME_scales, u8
/// (..., blocks), of each block of 32 the exponent of 2 plus 127; 255: its elements are NaN. The last dim is the one
/// that a product sums over. Every value but those beyond the largest is a bf16.
class Mxfp4Tensor final : public QuantizedTensor {
 public:
  static constexpr std::string_view kBlocks = "_blocks", kScales = "_scales";

  /// True if a tensor of this name is one of the two of such a tensor.
  static bool is_part(const WeightFiles& files, const std::string& name);
  /// `codes`: NAME_blocks. Error(model) where the scales are missing, or shapes do not fit.
  Mxfp4Tensor(const WeightFiles& files, const std::string& codes);

  bool is_by_rows() const override { return true; }
  std::vector<std::string> others() const override { return {scales_}; }
  void read(WeightFiles& files, std::int64_t first, std::int64_t count, float* out) const override;

 private:
  std::string codes_, scales_;
};

}  // namespace zs
