#pragma once

#include <string>

#include "model/families/model_config.h"
#include "model/weights/tensor_map.h"

namespace zs {

/// The model of a folder that transformers has written: what its config.json says, checked as keys of a configuration
/// are. Error(model) that names what is wrong, or not supported.
ModelConfig folder_model(const std::string& folder);
/// Dtype of its weights by its config.json: "f32", "bf16" or "f16".
std::string folder_dtype(const std::string& folder);
/// True if every tensor of the folder that `map` does not pass over is bf16. False where the files cannot be read.
bool is_stored_in_bf16(const std::string& folder, const TensorMap& map);

}  // namespace zs
