#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zs {

/// Adapters of low rank on a frozen model: the keys `lora.*` of a configuration, which say what each means. Plain data.
struct LoraConfig {
  std::int64_t rank = 0;  ///< 0: none
  double alpha = 0;       ///< once it is resolved, as all are, above 0
  bool rslora = false, dora = false;
  std::vector<std::string> targets = {};
  std::vector<std::string> rank_pattern = {}, alpha_pattern = {};  ///< "PATTERN=VALUE"
  std::vector<std::string> modules_to_save = {};
  double dropout = 0;
  std::string path = {}, export_to = {};

  bool is_on() const { return rank > 0; }
  bool operator==(const LoraConfig&) const = default;
};

}  // namespace zs
