#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zs {

/// Adapters of low rank on a frozen model: the keys `lora.*` of a configuration, which say what each means. Plain data.
struct LoraConfig {
  std::int64_t rank = 0;  ///< 0: none
  double alpha = 0;       ///< once it is resolved, as all are, above 0
  std::vector<std::string> targets = {};
  double dropout = 0;
  std::string path = {}, export_to = {};

  bool is_on() const { return rank > 0; }
  float scale() const { return static_cast<float>(alpha / static_cast<double>(rank)); }
  bool operator==(const LoraConfig&) const = default;
};

}  // namespace zs
