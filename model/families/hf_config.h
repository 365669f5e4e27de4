#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/families/model_config.h"
#include "model/weights/tensor_map.h"

namespace zs {

/// A config.json as transformers has written it, any version. A key that is absent or null has the value that
/// transformers would give it. A setting that zshard does not have, and that changes a model's output, is an
/// Error(model) that names it. Copies share the document.
class HfConfig {
 public:
  static constexpr const char* kFile = "config.json";

  /// Reads the config.json of a folder. Error(model).
  static HfConfig of_folder(const std::string& folder);
  HfConfig(const nlohmann::json& document, std::string file);

  const std::string& file() const { return file_; }
  const nlohmann::json& document() const { return *document_; }
  /// "LlamaForCausalLM"; empty where it does not say.
  std::string architecture() const;
  std::string model_type() const { return text("model_type", ""); }

  bool has(const char* key) const;  ///< and it is not null
  std::int64_t integer(const char* key, std::int64_t otherwise) const;
  double number(const char* key, double otherwise) const;
  bool boolean(const char* key, bool otherwise) const;
  std::string text(const char* key, const std::string& otherwise) const;
  /// A list of integers from 0; empty where it is absent.
  std::vector<std::int64_t> integers(const char* key) const;
  /// Null, {} where it is absent.
  HfConfig object(const char* key) const;

  /// The setting is not supported.
  [[noreturn]] void refuse(const char* key) const;
  /// Demands a key of an object whose kind cannot be without it.
  void need(const char* key, const std::string& kind) const;
  /// Demands that a key is absent, null, or this value.
  void require(const char* key, const nlohmann::json& value) const;
  /// Refuses what no family here has, and what only others than one that reads `own` have.
  void refuse_foreign(std::span<const std::string_view> own) const;

 private:
  [[noreturn]] void ill_typed(const char* key, const char* wanted) const;
  const nlohmann::json* find(const char* key) const;

  std::shared_ptr<const nlohmann::json> document_;
  std::string file_, place_;
};

/// Defaults that transformers has for a decoder with rotary positions whose config.json says nothing.
struct RotaryDefaults {
  /// kv_heads 0: as many as heads. head_dim 0: width / heads.
  std::int64_t hidden = 11008, vocab = 32000, context = 2048, kv_heads = 0, head_dim = 0;
  std::int64_t layers = 32, heads = 32, width = 4096;
  double norm_eps = 1e-6, rotary_base = 10000;
  bool is_tied = false;
};

/// Layers that a list in a config.json may be about: a model of more is refused once all is read.
inline constexpr std::int64_t kMostLayers = 1024;

/// The settings that Llama, Mistral and Qwen have in common, both ways.
ModelConfig rotary_from_config(const HfConfig& config, const char* family, const RotaryDefaults& defaults);
nlohmann::ordered_json rotary_to_config(const ModelConfig& model, const char* architecture);
/// Map of the parameters of such a decoder; a family adds what is its own.
TensorMap rotary_tensor_map(const ModelConfig& model, bool has_qkv_bias, bool has_qk_norm);

/// The window of a model of which every layer, or none, has one; 0: none. `first`: the first layer that has.
std::int64_t window_of_layers(const HfConfig& config, std::int64_t layers, std::int64_t window, std::int64_t first);

/// Window of Qwen: layers from max_window_layers on have one, if use_sliding_window is set.
std::int64_t qwen_window(const HfConfig& config, std::int64_t layers);

}  // namespace zs
