#pragma once

#include <cstdint>
#include <string>

namespace zs {

/// What a model is: the keys `model.*` of a configuration, which say what each means. Plain data. A family (family.h) gives those that
/// are 0 or empty their values, and makes the model.
struct ModelConfig {
  std::string family = "gpt2";
  std::string preset = {};
  std::int64_t layers = 0, heads = 0, width = 0, context = 0, vocab = 0;
  std::string activation = "gelu_tanh";
  std::int64_t kv_heads = 0, hidden = 0;
  double rotary_base = 10000;
  bool tied_head = true;

  bool operator==(const ModelConfig&) const = default;
};

}  // namespace zs
