#include "model/families/mixture.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "model/families/rotary_decoder.h"

namespace zs {
namespace {

constexpr const char *kExperts = "num_experts", *kLocalExperts = "num_local_experts";
constexpr const char *kSparseStep = "decoder_sparse_step", *kDenseLayers = "mlp_only_layers";

std::int64_t hidden_of_experts(const ModelConfig& model) {
  return model.expert_hidden > 0 ? model.expert_hidden : model.hidden;
}

bool is_among(const std::vector<std::int64_t>& layers, std::int64_t layer) {
  return std::find(layers.begin(), layers.end(), layer) != layers.end();
}

/// Number of experts, under either of the names that versions of transformers write.
std::int64_t experts_of(const HfConfig& config, std::int64_t otherwise) {
  const std::int64_t experts = config.integer(config.has(kExperts) ? kExperts : kLocalExperts, otherwise);
  config.require(kLocalExperts, experts);
  return experts;
}

std::vector<TensorRule> rules_of_layer(const ModelConfig& model, const MixtureNames& names, std::int64_t layer) {
  const std::string files = fmt::format("model.layers.{}.", layer), block = fmt::format("blocks.{}.mlp.", layer);
  const auto& [gate, up, down] = names.gate_up_down;
  const std::int64_t hidden = hidden_of_experts(model);
  TensorRule gates_ups{block + "experts.gate_up", {}}, downs{block + "experts.down", {}};
  for (std::int64_t e = 0; e < model.experts; ++e) {
    const std::string expert = fmt::format("{}{}.{}.", files, names.experts, e);
    gates_ups.parts.push_back({expert + gate + ".weight", hidden});
    gates_ups.parts.push_back({expert + up + ".weight", hidden});
    downs.parts.push_back({expert + down + ".weight", model.width});
  }
  std::vector<TensorRule> rules = {
      {block + "router.weight", {{files + names.router + ".weight"}}}, std::move(gates_ups), std::move(downs)};
  if (model.shared_expert_hidden == 0) return rules;
  const std::string shared = files + names.shared + ".";
  rules.push_back({block + "shared.gate_up.weight",
                   {{shared + gate + ".weight", model.shared_expert_hidden},
                    {shared + up + ".weight", model.shared_expert_hidden}}});
  rules.push_back({block + "shared.down.weight", {{shared + down + ".weight"}}});
  rules.push_back({block + "shared_gate.weight", {{files + names.shared_gate + ".weight"}}});
  return rules;
}

}  // namespace

MixtureNames qwen_mixture_names() {
  return {
      "mlp.gate", "mlp.experts", {"gate_proj", "up_proj", "down_proj"}, "mlp.shared_expert", "mlp.shared_expert_gate"};
}

std::vector<std::string_view> mixture_keys(const std::vector<std::string_view>& more) {
  std::vector<std::string_view> keys = {"model.experts", "model.experts_per_token", "model.balance_loss",
                                        "model.z_loss"};
  keys.insert(keys.end(), more.begin(), more.end());
  return rotary_decoder_keys(std::move(keys));
}

std::vector<std::string_view> mixture_settings() { return {kExperts, kLocalExperts}; }

void take_experts(const HfConfig& config, ModelConfig& model, const MixtureDefaults& defaults) {
  model.experts = experts_of(config, defaults.experts);
  model.experts_per_token = config.integer("num_experts_per_tok", defaults.experts_per_token);
  config.require("output_router_logits", false);  // else router_aux_loss_coef would be a part of the loss
  config.require("router_jitter_noise", 0.0);
}

void take_sparse_layers(const HfConfig& config, ModelConfig& model, std::int64_t expert_hidden) {
  model.expert_hidden = config.integer("moe_intermediate_size", expert_hidden);
  model.norm_topk = config.boolean("norm_topk_prob", false);
  const std::int64_t step = config.integer(kSparseStep, 1), layers = std::min(model.layers, kMostLayers);
  std::set<std::int64_t> dense;
  for (std::int64_t layer = 0; layer < layers; ++layer)
    if ((layer + 1) % step != 0) dense.insert(layer);
  for (const std::int64_t layer : config.integers(kDenseLayers))
    if (layer < layers) dense.insert(layer);
  model.dense_layers.assign(dense.begin(), dense.end());
}

void add_experts(nlohmann::ordered_json& config, const ModelConfig& model, const char* count) {
  config[count] = model.experts;
  config["num_experts_per_tok"] = model.experts_per_token;
  config["output_router_logits"] = false;
  if (model.balance_loss > 0) config["router_aux_loss_coef"] = model.balance_loss;
}

void add_sparse_layers(nlohmann::ordered_json& config, const ModelConfig& model) {
  config["moe_intermediate_size"] = hidden_of_experts(model);
  config["norm_topk_prob"] = model.norm_topk;
  config[kSparseStep] = 1;
  config[kDenseLayers] = model.dense_layers;
}

void set_experts(TransformerOptions& options, const ModelConfig& model) {
  options.block.mixture = {.router = {.width = model.width,
                                      .experts = model.experts,
                                      .route = {.chosen = model.experts_per_token, .normalizes = model.norm_topk},
                                      .balance_loss = static_cast<float>(model.balance_loss),
                                      .z_loss = static_cast<float>(model.z_loss)},
                           .experts = {.width = model.width,
                                       .hidden = hidden_of_experts(model),
                                       .experts = model.experts,
                                       .activation = options.block.mlp.activation},
                           .shared_hidden = model.shared_expert_hidden,
                           .has_shared_gate = model.shared_expert_hidden > 0};
  options.of_layer = [dense = model.dense_layers](std::int64_t layer, BlockOptions& block) {
    if (is_among(dense, layer)) block.mixture.reset();
  };
}

TensorMap with_experts(const TensorMap& map, const ModelConfig& model, const MixtureNames& names) {
  TensorMap all = map;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    if (is_among(model.dense_layers, layer)) continue;
    const std::string mlp = fmt::format("blocks.{}.mlp.", layer);
    std::erase_if(all.rules, [&](const TensorRule& rule) { return rule.parameter.starts_with(mlp); });
    for (TensorRule& rule : rules_of_layer(model, names, layer)) all.rules.push_back(std::move(rule));
  }
  return all;
}

}  // namespace zs
