#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zs {

/// Configuration of a model: the keys `model.*`, which say what each means. Plain data. A family (family.h) gives those
/// that are 0 or empty their values, and makes the model.
struct ModelConfig {
  std::string family = "gpt2";
  std::string preset = {};
  std::int64_t layers = 0, heads = 0, width = 0, context = 0, vocab = 0;
  std::string activation = "gelu_tanh";
  std::int64_t kv_heads = 0, hidden = 0;
  double rotary_base = 10000;
  bool tied_head = true;
  std::int64_t head_dim = 0, window = 0;
  double norm_eps = 1e-5;
  std::string rotary_scaling = "none";
  double rotary_factor = 8, rotary_low = 1, rotary_high = 4;
  std::int64_t rotary_context = 8192;
  bool rotary_truncate = true;
  std::int64_t pad_token_id = -1;
  std::vector<std::int64_t> no_rope_layers = {};
  std::vector<std::int64_t> global_layers = {};
  double local_rotary_base = 10000;
  std::int64_t experts = 0, experts_per_token = 0, expert_hidden = 0, shared_expert_hidden = 0;
  bool norm_topk = true;
  std::vector<std::int64_t> dense_layers = {};
  double balance_loss = 0, z_loss = 0;
  double dropout = 0, embedding_dropout = -1, attention_dropout = -1, residual_dropout = -1;
  std::string path = {};

  /// embedding_dropout and its like, where below 0 stands for `dropout`.
  float dropout_of(double ModelConfig::*part) const {
    return static_cast<float>(this->*part < 0 ? dropout : this->*part);
  }
  bool has_dropout() const {
    return dropout_of(&ModelConfig::embedding_dropout) > 0 || dropout_of(&ModelConfig::attention_dropout) > 0 ||
           dropout_of(&ModelConfig::residual_dropout) > 0;
  }
  bool operator==(const ModelConfig&) const = default;
};

}  // namespace zs
