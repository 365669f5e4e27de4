#include <nlohmann/json.hpp>

#include "model/families/family.h"
#include "model/families/hf_config.h"
#include "model/nn/transformer.h"

namespace zs {
namespace {

std::unique_ptr<LanguageModel> make_gpt2(const ModelConfig& model) {
  const Activation activation = model.activation == "gelu_erf" ? Activation::gelu_erf : Activation::gelu_tanh;
  const std::int64_t hidden = model.hidden > 0 ? model.hidden : 4 * model.width;
  return std::make_unique<Transformer>(
      TransformerOptions{.vocab = model.vocab,
                         .layers = model.layers,
                         .positions = model.context,
                         .is_tied = model.tied_head,
                         .block = {.norm = NormKind::layer,
                                   .norm_eps = static_cast<float>(model.norm_eps),
                                   .attention = {.width = model.width,
                                                 .heads = model.heads,
                                                 .is_one_matrix = true,  // c_attn
                                                 .dropout = model.dropout_of(&ModelConfig::attention_dropout)},
                                   .mlp = {.width = model.width, .hidden = hidden, .activation = activation},
                                   .residual_dropout = model.dropout_of(&ModelConfig::residual_dropout)},
                         .embedding_dropout = model.dropout_of(&ModelConfig::embedding_dropout)});
}

ModelConfig gpt2_preset(std::string name, std::int64_t layers, std::int64_t heads, std::int64_t width,
                        std::int64_t context = 1024) {
  return {.family = "gpt2",
          .preset = std::move(name),
          .layers = layers,
          .heads = heads,
          .width = width,
          .context = context,
          .vocab = 50257};
}

/// The names that transformers has for the two forms of GELU.
std::string gelu_of(const HfConfig& config) {
  constexpr const char* kKey = "activation_function";
  const std::string name = config.text(kKey, "gelu_new");
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast") return "gelu_tanh";
  if (name != "gelu" && name != "gelu_python") config.refuse(kKey);
  return "gelu_erf";
}

/// Takes the dropout where all parts have the same: that is model.dropout, so that this key alone changes them.
void take_dropout(const HfConfig& config, ModelConfig& model) {
  const auto read = [&](const char* key) {
    const double probability = config.number(key, 0.1);
    if (!(probability >= 0 && probability < 1)) config.refuse(key);
    return probability;
  };
  const double embedding = read("embd_pdrop"), attention = read("attn_pdrop"), residual = read("resid_pdrop");
  model.dropout = residual;
  if (embedding != residual) model.embedding_dropout = embedding;
  if (attention != residual) model.attention_dropout = attention;
}

ModelConfig gpt2_from_config(const HfConfig& config) {
  ModelConfig model{.family = "gpt2"};
  // transformers reads the names that others have for it, too, and lets them win.
  model.layers = config.integer("num_hidden_layers", config.integer("n_layer", 12));
  model.heads = config.integer("num_attention_heads", config.integer("n_head", 12));
  model.width = config.integer("hidden_size", config.integer("n_embd", 768));
  model.context = config.integer("max_position_embeddings", config.integer("n_positions", 1024));
  model.vocab = config.integer("vocab_size", 50257);
  model.hidden = config.integer("n_inner", 0);
  if (model.hidden == 4 * model.width) model.hidden = 0;
  model.activation = gelu_of(config);
  model.norm_eps = config.number("layer_norm_epsilon", 1e-5);
  model.tied_head = config.boolean("tie_word_embeddings", true);
  take_dropout(config, model);
  config.require("scale_attn_weights", true);
  config.require("scale_attn_by_inverse_layer_idx", false);
  return model;
}

nlohmann::ordered_json gpt2_to_config(const ModelConfig& model) {
  const auto part = [&](double dropout) { return dropout < 0 ? model.dropout : dropout; };
  nlohmann::ordered_json config = {{"architectures", {"GPT2LMHeadModel"}},
                                   {"model_type", "gpt2"},
                                   {"vocab_size", model.vocab},
                                   {"n_positions", model.context},
                                   {"n_embd", model.width},
                                   {"n_layer", model.layers},
                                   {"n_head", model.heads},
                                   {"n_inner", nullptr},
                                   {"activation_function", model.activation == "gelu_erf" ? "gelu" : "gelu_new"},
                                   {"layer_norm_epsilon", model.norm_eps},
                                   {"attn_pdrop", part(model.attention_dropout)},
                                   {"embd_pdrop", part(model.embedding_dropout)},
                                   {"resid_pdrop", part(model.residual_dropout)},
                                   {"tie_word_embeddings", model.tied_head}};
  if (model.hidden != 0) config["n_inner"] = model.hidden;
  return config;
}

/// Map of GPT-2's parameters. Its products are transformers' Conv1D, whose weights are (in, out).
TensorMap gpt2_tensor_map(const ModelConfig& model) {
  const std::string block = "transformer.h.{}.", ours = "blocks.{}.";
  TensorMap map{.prefix = "transformer.",
                .passed_over = {block + "attn.bias", block + "attn.masked_bias"},  // the causal mask
                .token_embedding = "transformer.wte.weight"};
  map.rules = {{"token_embedding.weight", {{map.token_embedding, model.vocab}}},
               {"position_embedding.weight", {{"transformer.wpe.weight"}}},
               {"norm.weight", {{"transformer.ln_f.weight"}}},
               {"norm.bias", {{"transformer.ln_f.bias"}}}};
  for (const auto& [norm, theirs] : {std::pair("norm1", "ln_1"), {"norm2", "ln_2"}}) {
    map.rules.push_back({fmt::format("{}{}.weight", ours, norm), {{fmt::format("{}{}.weight", block, theirs)}}});
    map.rules.push_back({fmt::format("{}{}.bias", ours, norm), {{fmt::format("{}{}.bias", block, theirs)}}});
  }
  for (const auto& [product, theirs] : {std::pair("attention.qkv", "attn.c_attn"),
                                        {"attention.out", "attn.c_proj"},
                                        {"mlp.up", "mlp.c_fc"},
                                        {"mlp.down", "mlp.c_proj"}}) {
    map.rules.push_back(
        {fmt::format("{}{}.weight", ours, product), {{fmt::format("{}{}.weight", block, theirs)}}, true});
    map.rules.push_back({fmt::format("{}{}.bias", ours, product), {{fmt::format("{}{}.bias", block, theirs)}}});
  }
  if (model.tied_head) {
    map.tied_head = "lm_head.weight";
  } else {
    map.rules.push_back({"head.weight", {{"lm_head.weight", model.vocab}}});
  }
  return expanded(map, model.layers);
}

}  // namespace

const Family& gpt2_family() {
  static const Family family{
      .name = "gpt2",
      .architecture = "GPT2LMHeadModel",
      .summary =
          "layer norms, learned positions, an MLP with GELU of 4 x `model.width` unless `model.hidden` says otherwise, "
          "biases",
      .keys = {"model.activation", "model.hidden", "model.dropout", "model.embedding_dropout",
               "model.attention_dropout", "model.residual_dropout"},
      .defaults = {.family = "gpt2", .vocab = 50257},
      // Radford et al. 2019, table 2, with the head count of the released models; the tiny one is ours.
      .presets = {gpt2_preset("tiny", 4, 4, 128, 256), gpt2_preset("124M", 12, 12, 768),
                  gpt2_preset("355M", 24, 16, 1024), gpt2_preset("774M", 36, 20, 1280),
                  gpt2_preset("1.5B", 48, 25, 1600)},
      .derive = [](ModelConfig&) {},
      .make = make_gpt2,
      .from_config = gpt2_from_config,
      .to_config = gpt2_to_config,
      .tensor_map = gpt2_tensor_map,
      .gguf = {"gpt2", false}};
  return family;
}

}  // namespace zs
