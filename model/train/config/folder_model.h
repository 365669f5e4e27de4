#pragma once

#include <string>

#include "model/families/model_config.h"

namespace zs {

/// The model of a folder that transformers has written: what its config.json says, checked as keys of a configuration
/// are. Error(model) that names what is wrong, or not supported.
ModelConfig folder_model(const std::string& folder);
/// Dtype of its weights by its config.json: "f32", "bf16" or "f16".
std::string folder_dtype(const std::string& folder);

}  // namespace zs
