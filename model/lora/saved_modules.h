#pragma once

#include <string>
#include <vector>

#include "model/lora/lora_config.h"
#include "model/lora/lora_targets.h"

namespace zs {

/// A module outside of the blocks that is trained whole beside adapters (modules_to_save of peft): an embedding, the
/// last norm, or the head.
struct SavedModule {
  std::string module;             ///< "model.embed_tokens", as transformers knows it
  std::string path;               ///< "token_embedding"
  std::vector<TensorRule> rules;  ///< its parameters in a model's files
};

/// All such modules of a model, in the order of its files. A head that is the token embedding is none.
std::vector<SavedModule> savable_modules(const ModelConfig& model);

/// Modules that lora.modules_to_save names, by patterns as in lora.targets. Error(config) that names a pattern which
/// matches none.
std::vector<SavedModule> saved_modules(const ModelConfig& model, const LoraConfig& lora);

/// Names by which peft, for which a name ends with what is given, finds these modules and no others of the model.
std::vector<std::string> peft_names(const ModelConfig& model, const std::vector<SavedModule>& modules);

/// Parameters of everything that is trained: those of the adapters, and of saved modules.
std::vector<ParameterShape> trained_parameters(const ModelConfig& model, const LoraConfig& lora);
/// Map of the same to the files of peft.
TensorMap trained_map(const ModelConfig& model, const LoraConfig& lora);

}  // namespace zs
