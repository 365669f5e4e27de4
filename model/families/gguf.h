#pragma once

#include <cstdint>
#include <optional>
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
  float norm_offset = 0;        ///< offset of a file's norms from the parameters
  const char* norm2 = "ffn_norm";  ///< name of a block's second norm
  bool rounds_ramp = false;        ///< llama.cpp rounds the ends of YaRN's ramp, though the family's models do not
  /// Says which setting llama.cpp's architecture computes otherwise than this model; null, or a null result: none.
  const char* (*difference)(const ModelConfig& model) = nullptr;
};

/// Kinds of file: most matrices are stored so. q4_K_M keeps in q6_K the head, fused queries, keys and values, and in
/// half of the blocks the values and the last product, as llama.cpp does.
enum class GgufFileType : std::uint8_t { f32, f16, bf16, q8_0, q6_k, q4_k_m };

/// "f32", "f16", "bf16", "q8_0", "q6_K" or "q4_K_M".
std::optional<GgufFileType> find_gguf_type(std::string_view name);

/// Model that becomes a GGUF file.
struct GgufModel {
  const TensorMap& map;
  const GgufFamily& family;
  const ModelConfig& model;
  std::string tokenizer;  ///< its folder, or one of its files; empty: none
};

/// Writes a GGUF file, which the caller commits: version 3, as llama.cpp reads it: sizes, weights, and the tokenizer.
/// Vectors and learned positions are f32; a matrix whose rows are no multiple of 256 is q8_0 instead of q6_K and q4_K,
/// and f16 where they are none of 32. Streamed, some rows at a time. Returns warnings. Error(model), Error(io),
/// Error(cannot_create).
std::vector<std::string> export_gguf(ParameterSource& source, const GgufModel& model, OutputFile& file,
                                     GgufFileType type);
/// Factors of low rank that are added to some rows of a parameter: `scale` times B (rows, rank) times A (rank,
/// columns).
struct GgufFactors {
  std::string parameter;
  std::int64_t row = 0, rows = 0, columns = 0, rank = 0;
  std::string a, b;  ///< parameters that hold them
  float scale = 1;
};

/// Writes an adapter as llama.cpp reads it beside a model's file (--lora), in f32. `alpha`: what the file says;
/// llama.cpp scales by it, divided by each rank, and B is stored so that this gives `scale`. Error(model), Error(io).
void export_gguf_adapter(ParameterSource& source, const GgufModel& model, const std::vector<GgufFactors>& factors,
                         double alpha, OutputFile& file);

/// Checks what needs no weights: Error(model) where no file can be made of the family, or llama.cpp has no tokenizer
/// of its kind.
void check_gguf(const ModelConfig& model, const std::string& tokenizer);
/// The first of these checks, all that an adapter needs.
void check_gguf_names(const ModelConfig& model);

}  // namespace zs
