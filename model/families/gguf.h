#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/data/output_file.h"
#include "model/families/model_config.h"
#include "model/weights/tensor_map.h"
#include "model/weights/weight_export.h"

namespace zs {

/// Names and layout that llama.cpp has for a family.
struct GgufFamily {
  const char* architecture = nullptr;  ///< "llama"; null: no file can be made of the family yet
  bool permutes_heads = false;  ///< its rotary positions turn neighbours, not halves: the rows of queries and keys are
                                ///< in another order
};

enum class GgufDType : std::uint8_t { f32, f16, bf16, q8_0 };

/// Model that becomes a GGUF file.
struct GgufModel {
  const TensorMap& map;
  const GgufFamily& family;
  const ModelConfig& model;
  std::string tokenizer;  ///< its folder, or one of its files; empty: none
};

/// Writes a GGUF file, which the caller commits: version 3, as llama.cpp reads it: sizes, weights, and the tokenizer.
/// Vectors and learned positions are f32; a matrix whose rows are no multiple of 32 is f16 instead of q8_0. Streamed,
/// some rows at a time. Returns warnings. Error(model), Error(io), Error(cannot_create).
std::vector<std::string> export_gguf(ParameterSource& source, const GgufModel& model, OutputFile& file,
                                     GgufDType dtype);
/// Checks what needs no weights: Error(model) where no file can be made of the family, or llama.cpp has no tokenizer
/// of its kind.
void check_gguf(const ModelConfig& model, const std::string& tokenizer);

}  // namespace zs
