#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/lora/lora_targets.h"
#include "model/weights/weight_export.h"
#include "model/weights/weight_import.h"

namespace zs {

/// Reads what a folder that peft has written says of its adapter, which is one of this model: targets by the names of
/// its tensors, as short as they can be; what it says of them in words is not looked at. Error(model) where it is none
/// of this model, or has what changes its output and is not supported.
LoraConfig read_lora_folder(const std::string& folder, const ModelConfig& model);

/// Tensors of an adapter, checked against what the configuration says: every one is there, and nothing else.
/// Error(model).
std::unique_ptr<WeightImport> open_adapter(const ModelConfig& model, const LoraConfig& lora);

/// Writes the parameters that are trained, all that `source` has, into a folder that exists.
void export_adapter(ParameterSource& source, const ModelConfig& model, const LoraConfig& lora,
                    const std::string& folder);

/// True if an adapter of the embedding leaves the head, which is tied to it, as it is: the merged model has two.
bool unties_head(const ModelConfig& model, const LoraConfig& lora);

/// A model with its adapters added to its weights: the parameters of the model without, and the head where that is not
/// the embedding any more. `adapters` may be the same object as `base`; `weight`: a factor of what they add.
std::unique_ptr<ParameterSource> merged(std::shared_ptr<ParameterSource> base,
                                        std::shared_ptr<ParameterSource> adapters, const ModelConfig& model,
                                        const LoraConfig& lora, double weight = 1);

/// Source of the parameters that are trained: the adapters', and those of modules that are trained whole.
std::unique_ptr<ParameterSource> trained_part(std::shared_ptr<ParameterSource> all, const ModelConfig& model,
                                              const LoraConfig& lora);

}  // namespace zs
