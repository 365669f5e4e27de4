#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/train/inference/inference.h"

namespace zs {

/// Request of `train sample`.
struct SampleRequest {
  std::optional<std::string> prompt;     ///< text
  std::vector<std::int32_t> prompt_ids;  ///< in its place; empty: none
  bool prints_ids = false;               ///< prints the ids that are drawn, "1,2,3", and no text
  std::optional<std::int64_t> tokens;    ///< none: 200
  double temperature = 0.8, top_p = 1;
  std::int64_t top_k = 0;
  std::optional<std::int64_t> seed;  ///< none: train.seed
};

/// Collective: draws tokens and prints them, on one rank, to stdout. The exit code.
int sample(Inference& inference, const SampleRequest& request);

}  // namespace zs
