#include "model/families/hf_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "model/families/rotary_decoder.h"
#include "model/json/strict_json.h"
#include "model/weights/regular_file.h"

namespace zs {
namespace {

using nlohmann::json;

/// A number that changes nothing; for any other kind of value that is false, null, or empty.
struct Foreign {
  const char* key;
  double neutral;
};
constexpr std::array kForeign = {
    Foreign{"quantization_config", 0},
    Foreign{"attn_logit_softcapping", 0},
    Foreign{"final_logit_softcapping", 0},
    Foreign{"query_pre_attn_scalar", 0},
    Foreign{"logit_scale", 1},
    Foreign{"logits_scaling", 1},
    Foreign{"embedding_multiplier", 1},
    Foreign{"residual_multiplier", 1},
    Foreign{"attention_multiplier", 0},
    Foreign{"partial_rotary_factor", 1},
    Foreign{"rotary_pct", 1},
    Foreign{"scale_emb", 1},
    Foreign{"scale_depth", 0},
    Foreign{"alibi", 0},
    Foreign{"use_parallel_residual", 0},
    Foreign{"parallel_attn", 0},
    Foreign{"num_experts", 0},
    Foreign{"num_local_experts", 0},
    Foreign{"n_routed_experts", 0},
    Foreign{"no_rope_layers", 0},
    Foreign{"is_encoder_decoder", 0},
    Foreign{"add_cross_attention", 0},
    Foreign{"use_alibi", 0},
    Foreign{"use_qk_norm", 0},
    Foreign{"attention_sinks", 0},
    Foreign{"clip_qkv", 0},
};

bool is_neutral(const json& value, double neutral) {
  if (value.is_null()) return true;
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number()) return value.get<double>() == neutral;
  return value.empty();
}

/// True of weights in a format that is read (model/weights/quantized_tensor.h).
bool is_read(const json& quantization) {
  if (quantization.is_object() && quantization.value("quant_method", json()) == "mxfp4") return true;
  return quantization.is_object() && quantization.value("quant_method", json()) == "bitsandbytes" &&
         quantization.value("load_in_4bit", json()) == true &&
         quantization.value("bnb_4bit_quant_type", json()) == "nf4";
}

/// Positions of a model's first training; outside the settings of rotary positions it goes before the one within.
constexpr const char* kFirstContext = "original_max_position_embeddings";

/// Takes the ramp of YaRN.
void take_yarn(const HfConfig& config, const HfConfig& rope, ModelConfig& model) {
  for (const char* const key : {"mscale", "mscale_all_dim"})
    if (rope.has(key)) rope.refuse(key);
  model.rotary_high = rope.number("beta_fast", 32);
  model.rotary_low = rope.number("beta_slow", 1);
  model.rotary_truncate = rope.boolean("truncate", true);
  model.rotary_context = config.integer(kFirstContext, rope.integer(kFirstContext, model.context));
  const RotaryScaling scaling = rotary_scaling_of(model);
  if (!(model.rotary_low > 0) || !(scaling.first < scaling.last))
    rope.refuse(rope.has(kFirstContext) ? kFirstContext : "rope_type");
  if (rope.has("attention_factor") && static_cast<float>(rope.number("attention_factor", 1)) != scaling.amplitude)
    rope.refuse("attention_factor");
}

/// Takes how the model's positions are stretched. transformers 5 writes all of it in rope_parameters, and reads
/// rope_scaling in its place if there is one; earlier ones have the base beside rope_scaling.
void take_rotary(const HfConfig& config, ModelConfig& model, double base) {
  constexpr const char *kNew = "rope_parameters", *kOld = "rope_scaling";
  const bool is_old = config.has(kOld) && !config.object(kOld).document().empty();
  const HfConfig rope = config.object(is_old ? kOld : kNew);
  for (const auto& entry : rope.document().items())
    if (entry.value().is_object()) rope.refuse(entry.key().c_str());  // others for other kinds of layers
  rope.require("partial_rotary_factor", 1.0);
  model.rotary_base = rope.number("rope_theta", config.number("rope_theta", base));
  const std::string type = rope.text("rope_type", rope.text("type", "default"));
  model.rotary_scaling = type == "default" ? "none" : type;
  if (type == "default") return;
  if (type != "linear" && type != "llama3" && type != "yarn") rope.refuse(rope.has("rope_type") ? "rope_type" : "type");
  rope.need("factor", type);
  model.rotary_factor = rope.number("factor", 1);
  if (!(model.rotary_factor >= 1)) rope.refuse("factor");
  if (type == "linear") return;
  if (type == "yarn") return take_yarn(config, rope, model);
  rope.need("low_freq_factor", type);
  rope.need("high_freq_factor", type);
  model.rotary_low = rope.number("low_freq_factor", 1);
  model.rotary_high = rope.number("high_freq_factor", 4);
  if (!(model.rotary_low < model.rotary_high)) rope.refuse("low_freq_factor");
  model.rotary_context = config.integer(kFirstContext, rope.integer(kFirstContext, model.context));
}

/// Padding token, whose embedding has no gradient where it is looked up; -1: there is none. Below 0 it counts from the
/// vocabulary's end, as in torch.
std::int64_t pad_token_of(const HfConfig& config, std::int64_t vocab) {
  constexpr const char* kKey = "pad_token_id";
  if (!config.has(kKey)) return -1;
  const json& value = config.document().at(kKey);
  if (!value.is_number_integer()) config.refuse(kKey);
  const bool is_beyond = value.is_number_unsigned() ? value.get<std::uint64_t>() >= static_cast<std::uint64_t>(vocab)
                                                    : value.get<std::int64_t>() < -vocab;
  if (is_beyond) config.refuse(kKey);
  return value.get<std::int64_t>() < 0 ? value.get<std::int64_t>() + vocab : value.get<std::int64_t>();
}

}  // namespace

HfConfig HfConfig::of_folder(const std::string& folder) {
  const std::string file = (std::filesystem::path(folder) / kFile).string();
  return HfConfig(parse_document(read_text_file(file, ReaderLimits::kModelJsonBytes), file), file);
}

HfConfig::HfConfig(const json& document, std::string file)
    : document_(std::make_shared<json>(document)), file_(std::move(file)) {
  if (!document_->is_object())
    throw Error(ExitCode::model, "the file is no JSON object", file_, "name a model's folder");
}

std::string HfConfig::architecture() const {
  const json* const list = find("architectures");
  if (list == nullptr || list->empty()) return {};
  if (!list->is_array() || !list->front().is_string()) ill_typed("architectures", "a list of names");
  return list->front().get<std::string>();
}

const json* HfConfig::find(const char* key) const {
  const auto found = document_->find(key);
  return found == document_->end() || found->is_null() ? nullptr : &*found;
}

bool HfConfig::has(const char* key) const { return find(key) != nullptr; }

void HfConfig::ill_typed(const char* key, const char* wanted) const {
  throw Error(ExitCode::model, fmt::format("{}{} is not {}", place_, key, wanted), file_,
              "use the file as it was written");
}

std::int64_t HfConfig::integer(const char* key, std::int64_t otherwise) const {
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  const json* const value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_number_unsigned() || value->get<std::uint64_t>() < 1 ||
      value->get<std::uint64_t>() > std::uint64_t{kMost})
    ill_typed(key, "an integer from 1");
  return value->get<std::int64_t>();
}

double HfConfig::number(const char* key, double otherwise) const {
  const json* const value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_number() || !std::isfinite(value->get<double>())) ill_typed(key, "a number");
  return value->get<double>();
}

bool HfConfig::boolean(const char* key, bool otherwise) const {
  const json* const value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) ill_typed(key, "true or false");
  return value->get<bool>();
}

std::string HfConfig::text(const char* key, const std::string& otherwise) const {
  const json* const value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_string()) ill_typed(key, "a text");
  return value->get<std::string>();
}

std::vector<std::int64_t> HfConfig::integers(const char* key) const {
  const json* const list = find(key);
  if (list == nullptr) return {};
  const auto is_number = [](const json& value) {
    return value.is_number_unsigned() && value.get<std::uint64_t>() <= std::numeric_limits<std::int32_t>::max();
  };
  if (!list->is_array() || !std::all_of(list->begin(), list->end(), is_number)) ill_typed(key, "a list of integers");
  return list->get<std::vector<std::int64_t>>();
}

HfConfig HfConfig::object(const char* key) const {
  const json* const value = find(key);
  if (value != nullptr && !value->is_object()) ill_typed(key, "an object");
  HfConfig inner(value == nullptr ? json::object() : *value, file_);
  inner.place_ = fmt::format("{}{}.", place_, key);
  return inner;
}

void HfConfig::refuse(const char* key) const {
  const json* const value = find(key);
  throw Error(ExitCode::model,
              fmt::format("{}{}{} is not supported, and it changes the model", place_, shortened(key),
                          value == nullptr ? " as it is by default" : " = " + shortened(value->dump())),
              file_, "use a model without it");
}

void HfConfig::need(const char* key, const std::string& kind) const {
  if (!has(key))
    throw Error(ExitCode::model, fmt::format("{}{} is missing, which \"{}\" needs", place_, key, shortened(kind)),
                file_, "use the file as it was written");
}

void HfConfig::require(const char* key, const json& value) const {
  const json* const found = find(key);
  if (found != nullptr && *found != value) refuse(key);
}

void HfConfig::refuse_foreign(std::span<const std::string_view> own) const {
  require("is_causal", true);
  for (const auto& [key, neutral] : kForeign) {
    if (std::find(own.begin(), own.end(), key) != own.end()) continue;
    const json* const value = find(key);
    if (value == nullptr || is_neutral(*value, neutral)) continue;
    if (std::string_view(key) != "quantization_config" || !is_read(*value)) refuse(key);
  }
}

ModelConfig rotary_from_config(const HfConfig& config, const char* family, const RotaryDefaults& defaults) {
  ModelConfig model{.family = family};
  model.layers = config.integer("num_hidden_layers", defaults.layers);
  model.heads = config.integer("num_attention_heads", defaults.heads);
  model.width = config.integer("hidden_size", defaults.width);
  model.context = config.integer("max_position_embeddings", defaults.context);
  model.vocab = config.integer("vocab_size", defaults.vocab);
  model.kv_heads = config.integer("num_key_value_heads", defaults.kv_heads == 0 ? model.heads : defaults.kv_heads);
  model.hidden = config.integer("intermediate_size", defaults.hidden);
  model.head_dim = config.integer("head_dim", defaults.head_dim == 0 ? model.width / model.heads : defaults.head_dim);
  model.norm_eps = config.number("rms_norm_eps", defaults.norm_eps);
  model.tied_head = config.boolean("tie_word_embeddings", defaults.is_tied);
  model.pad_token_id = pad_token_of(config, model.vocab);
  take_rotary(config, model, defaults.rotary_base);
  if (config.text("hidden_act", "silu") != "swish") config.require("hidden_act", "silu");  // two names of one
  config.require("attention_dropout", 0.0);
  return model;
}

nlohmann::ordered_json rotary_to_config(const ModelConfig& model, const char* architecture) {
  nlohmann::ordered_json rope = {{"rope_theta", model.rotary_base},
                                 {"rope_type", model.rotary_scaling == "none" ? "default" : model.rotary_scaling}};
  if (model.rotary_scaling != "none") rope["factor"] = model.rotary_factor;
  if (model.rotary_scaling == "llama3") {
    rope["low_freq_factor"] = model.rotary_low;
    rope["high_freq_factor"] = model.rotary_high;
    rope[kFirstContext] = model.rotary_context;
  }
  if (model.rotary_scaling == "yarn") {
    rope["beta_fast"] = model.rotary_high;
    rope["beta_slow"] = model.rotary_low;
    rope["truncate"] = model.rotary_truncate;
    rope[kFirstContext] = model.rotary_context;
  }
  nlohmann::ordered_json config = {{"architectures", {architecture}},
                                   {"model_type", model.family},
                                   {"vocab_size", model.vocab},
                                   {"hidden_size", model.width},
                                   {"intermediate_size", model.hidden},
                                   {"num_hidden_layers", model.layers},
                                   {"num_attention_heads", model.heads},
                                   {"num_key_value_heads", model.kv_heads},
                                   {"head_dim", model.head_dim > 0 ? model.head_dim : model.width / model.heads},
                                   {"hidden_act", "silu"},
                                   {"max_position_embeddings", model.context},
                                   {"rms_norm_eps", model.norm_eps},
                                   {"tie_word_embeddings", model.tied_head},
                                   {"attention_dropout", 0.0},
                                   {"sliding_window", nullptr},
                                   {"use_sliding_window", model.window > 0},
                                   {"max_window_layers", 0},
                                   {"rope_theta", model.rotary_base}};  // readers of the older form find the base here
  config["rope_parameters"] = rope;
  config["pad_token_id"] = nullptr;  // some have one where nothing is said
  if (model.pad_token_id >= 0) config["pad_token_id"] = model.pad_token_id;
  if (model.window > 0) config["sliding_window"] = model.window;
  if (model.rotary_scaling != "none") config["rope_scaling"] = rope;
  return config;
}

TensorMap rotary_tensor_map(const ModelConfig& model, bool has_qkv_bias, bool has_qk_norm) {
  const std::int64_t head_dim = model.head_dim > 0 ? model.head_dim : model.width / model.heads;
  const std::int64_t q = model.heads * head_dim, kv = model.kv_heads * head_dim;
  const std::string block = "model.layers.{}.", attention = block + "self_attn.", mlp = block + "mlp.";
  TensorMap map{.prefix = "model.",
                .passed_over = {attention + "rotary_emb.inv_freq"},
                .token_embedding = "model.embed_tokens.weight"};
  map.rules = {
      {"token_embedding.weight", {{map.token_embedding, model.vocab}}},
      {"norm.weight", {{"model.norm.weight"}}},
      {"blocks.{}.norm1.weight", {{block + "input_layernorm.weight"}}},
      {"blocks.{}.attention.qkv.weight",
       {{attention + "q_proj.weight", q}, {attention + "k_proj.weight", kv}, {attention + "v_proj.weight", kv}}},
      {"blocks.{}.attention.out.weight", {{attention + "o_proj.weight"}}},
      {"blocks.{}.norm2.weight", {{block + "post_attention_layernorm.weight"}}},
      {"blocks.{}.mlp.gate_up.weight",
       {{mlp + "gate_proj.weight", model.hidden}, {mlp + "up_proj.weight", model.hidden}}},
      {"blocks.{}.mlp.down.weight", {{mlp + "down_proj.weight"}}},
  };
  if (model.tied_head) {
    map.tied_head = "lm_head.weight";
  } else {
    map.rules.push_back({"head.weight", {{"lm_head.weight", model.vocab}}});
  }
  if (has_qkv_bias)
    map.rules.push_back(
        {"blocks.{}.attention.qkv.bias",
         {{attention + "q_proj.bias", q}, {attention + "k_proj.bias", kv}, {attention + "v_proj.bias", kv}}});
  if (has_qk_norm) {
    map.rules.push_back({"blocks.{}.attention.q_norm.weight", {{attention + "q_norm.weight"}}});
    map.rules.push_back({"blocks.{}.attention.k_norm.weight", {{attention + "k_norm.weight"}}});
  }
  return expanded(map, model.layers);
}

std::int64_t window_of_layers(const HfConfig& config, std::int64_t layers, std::int64_t window, std::int64_t first) {
  std::int64_t windowed = window == 0 ? 0 : std::max<std::int64_t>(0, layers - first);
  if (config.has("layer_types")) {
    const json& types = config.document().at("layer_types");
    windowed = 0;
    for (const json& type : types) {
      if (type != "full_attention" && type != "sliding_attention") config.refuse("layer_types");
      windowed += type == "sliding_attention" ? 1 : 0;
    }
    if (std::ssize(types) != layers || (windowed > 0 && window == 0)) config.refuse("layer_types");
  }
  if (windowed == 0) return 0;
  if (windowed != layers) config.refuse(config.has("layer_types") ? "layer_types" : "max_window_layers");
  return window;
}

std::int64_t qwen_window(const HfConfig& config, std::int64_t layers) {
  const bool is_used = config.boolean("use_sliding_window", false);
  if (!is_used) return window_of_layers(config, layers, 0, 0);
  const std::int64_t window = config.document().contains("sliding_window") ? config.integer("sliding_window", 0) : 4096;
  const std::int64_t first = config.document().value("max_window_layers", nlohmann::json(28)) == 0
                                 ? 0
                                 : config.integer("max_window_layers", 28);
  return window_of_layers(config, layers, window, first);
}

}  // namespace zs
