#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "model/families/hf_config.h"
#include "model/families/model_config.h"
#include "model/nn/transformer.h"

namespace zs {

/// Names that a family's files have for the parts of a mixture of experts, below "model.layers.{}.".
struct MixtureNames {
  std::string router;                         ///< "block_sparse_moe.gate"
  std::string experts;                        ///< "block_sparse_moe.experts", each expert by its number below it
  std::array<std::string, 3> gate_up_down;    ///< "w1", "w3", "w2"
  std::string shared = {}, shared_gate = {};  ///< "mlp.shared_expert" and "mlp.shared_expert_gate"; empty: none
};

/// The names of Qwen's and OLMoE's.
MixtureNames qwen_mixture_names();

/// The keys of model.* that a decoder of mixtures has, and `more`.
std::vector<std::string_view> mixture_keys(const std::vector<std::string_view>& more = {});

/// Values that transformers gives the settings of a mixture where a config.json says nothing.
struct MixtureDefaults {
  std::int64_t experts, experts_per_token;
};

/// Settings of take_experts that no dense family may have.
std::vector<std::string_view> mixture_settings();
/// Reads into `model` the settings that all mixtures have.
void take_experts(const HfConfig& config, ModelConfig& model, const MixtureDefaults& defaults);
/// Reads what Qwen's have beside these: experts of a size of their own (`expert_hidden` where the file says nothing),
/// and layers without: all but each decoder_sparse_step-th, and mlp_only_layers.
void take_sparse_layers(const HfConfig& config, ModelConfig& model, std::int64_t expert_hidden);
/// Adds these to a config.json; `count`: the name of the number of experts.
void add_experts(nlohmann::ordered_json& config, const ModelConfig& model, const char* count);
void add_sparse_layers(nlohmann::ordered_json& config, const ModelConfig& model);

/// Makes the blocks of `options` mixtures by the sizes of `model`, but for its dense layers.
void set_experts(TransformerOptions& options, const ModelConfig& model);

/// A decoder's map whose MLPs are mixtures, but for the model's dense layers.
TensorMap with_experts(const TensorMap& map, const ModelConfig& model, const MixtureNames& names);

}  // namespace zs
