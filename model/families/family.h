#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/families/gguf.h"
#include "model/families/model_config.h"
#include "model/nn/language_model.h"
#include "model/weights/tensor_map.h"

namespace zs {

class HfConfig;

/// A kind of model, by the name that users give. Everything that differs between families is a member here, so that a
/// name is compared nowhere else; each family is one file beside this one, and a line in families.cpp. Immutable, and
/// there for ever.
struct Family {
  std::string_view name;             ///< the value of model.family: "gpt2"
  std::string_view architecture;     ///< as a Hugging Face config.json has it: "GPT2LMHeadModel"
  std::string_view model_type = {};  ///< there, too; empty: the name
  std::string_view summary;          ///< feature that distinguishes the family, for the documentation of model.family
  /// Keys of model.* that not every family has, and this one has: "model.kv_heads".
  std::vector<std::string_view> keys;
  /// Settings of config.json that from_config reads, and that change the model of any other family.
  std::vector<std::string_view> settings = {};
  /// Properties of a model that neither a preset nor a key says; vocab: of token files.
  ModelConfig defaults;
  /// Published sizes; `preset` is the name. Unique over all families.
  std::vector<ModelConfig> presets;
  /// Gives sizes that follow from others, and are 0 where nobody has given them, their values.
  void (*derive)(ModelConfig& model);
  std::unique_ptr<LanguageModel> (*make)(const ModelConfig& model);
  /// Reads a config.json of this architecture. Error(model) where it asks for what the family has not.
  ModelConfig (*from_config)(const HfConfig& config);
  /// Writes a config.json, the inverse of from_config.
  nlohmann::ordered_json (*to_config)(const ModelConfig& model);
  /// Map of the parameters to files.
  TensorMap (*tensor_map)(const ModelConfig& model);
  GgufFamily gguf = {};

  bool has(std::string_view key) const;
};

/// All of them, in the order of the documentation.
std::span<const Family* const> families();
/// Null where there is none.
const Family* find_family(std::string_view name);
/// Family of a config.json. Error(model) where there is none.
const Family& family_of(const HfConfig& config);
/// Error(usage) where there is none.
const Family& family_named(std::string_view name);
/// Null where there is none.
const ModelConfig* find_preset(std::string_view name);

/// Families that have this key among `keys`.
std::vector<const Family*> families_with(std::string_view key);

/// "gpt2|llama", as a key's choices are written.
std::string family_choices();
/// "tiny|124M|..." of all families.
std::string preset_choices();

}  // namespace zs
