#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/families/model_config.h"
#include "model/lora/lora_config.h"
#include "model/nn/language_model.h"
#include "model/weights/tensor_map.h"

namespace zs {

/// A product in the blocks of a model as transformers knows it, which may be some rows of one that is fused here; or
/// the token embedding.
struct LoraProduct {
  std::string module;     ///< "model.layers.3.self_attn.q_proj"
  std::string parameter;  ///< parameter that holds its rows: "blocks.3.attention.qkv.weight"
  std::int64_t row = 0, rows = 0, columns = 0;
  bool is_transposed = false;  ///< transformers' Conv1D, whose weight is (in, out)
  bool is_of_router = false;   ///< true: it can have no adapter
  /// Experts whose packed products it is, all rows of `parameter`; 0: it is one. Its module is the tensor that
  /// transformers holds: "model.layers.3.mlp.experts.gate_up_proj", whatever the files have.
  std::int64_t experts = 0;
  std::int64_t interleaved = 1;  ///< that tensor's: see TensorRule

  /// Rows of a product.
  std::int64_t own_rows() const { return experts > 0 ? rows / experts : rows; }
  bool is_embedding = false;  ///< rows: of the vocabulary, without padding

  /// The adapter's parameters: "blocks.3.lora.self_attn.q_proj.lora_A.weight", (rank, columns), and lora_B, (rows,
  /// rank); of experts A has rank rows for each. Of the embedding "token_embedding.lora.embed_tokens.lora_embedding_A",
  /// (padded rows, rank), and lora_embedding_B, (columns, rank).
  std::string a() const { return name_of(is_embedding ? "lora_embedding_A" : "lora_A.weight"); }
  std::string b() const { return name_of(is_embedding ? "lora_embedding_B" : "lora_B.weight"); }
  /// "lora_magnitude_vector", (rows).
  std::string magnitude() const { return name_of("lora_magnitude_vector"); }

 private:
  std::string name_of(const char* last) const;
};

/// A product that has an adapter.
struct LoraTarget : LoraProduct {
  std::int64_t rank = 0;
  double alpha = 0;
  float scale = 1;             ///< factor of B A
  bool has_magnitude = false;  ///< DoRA
};

/// True if a parameter of a model is an adapter's.
bool is_adapter_parameter(std::string_view name);

/// The token embedding among a model's parameters.
inline const std::string kTokenEmbedding = "token_embedding.weight";

/// Prefix that modules have in peft's files.
inline constexpr std::string_view kPeftPrefix = "base_model.model.";

/// True if a pattern of modules names this one: a NamePattern of all of its name, or of what is after one of its dots.
/// "all-linear", peft's word, names all products, but matching() leaves out routers.
bool is_named_by(const std::string& pattern, const std::string& module);

/// Shapes of a model's parameters, by name.
std::map<std::string, Shape> parameter_shapes(const ModelConfig& model);

/// All products in the blocks of a model whose sizes are known, in the order of its files, and its token embedding.
std::vector<LoraProduct> lora_products(const ModelConfig& model);

/// Products whose name, or what of it is after one of its dots, a NamePattern matches: "q_proj", "*_proj",
/// "layers.0.*". Error(config) that names a pattern which matches none, and the nearest names; or one that matches what
/// can have no adapters.
std::vector<LoraProduct> matching(const std::vector<LoraProduct>& products, const std::vector<std::string>& patterns);
/// Targets that a configuration names, with the rank and the scale of each: alpha / rank, or with lora.rslora alpha /
/// sqrt(rank) (Kalajdzievski 2023). Error(config) where lora.rank_pattern or lora.alpha_pattern has what it cannot, or
/// lora.dora is set beside an embedding.
std::vector<LoraTarget> lora_targets(const ModelConfig& model, const LoraConfig& lora);

/// Fewest patterns, without wildcards, that match these products of all and no other: last parts of their names where
/// that will do, else whole names. peft understands them, too.
std::vector<std::string> shortest_patterns(const std::vector<LoraProduct>& all, std::span<const std::string> modules);

/// Gives a model that is not sharded yet its adapters.
void attach_adapters(LanguageModel& model, const std::vector<LoraTarget>& targets, float dropout);
/// Gives new adapters of a sharded model, whose weights are there, the magnitudes with which it begins as it is.
/// Collective, between steps.
void begin_magnitudes(LanguageModel& model, ShardedRuntime& runtime);

/// The adapters' parameters.
std::vector<ParameterShape> adapter_parameters(const std::vector<LoraTarget>& targets);
/// Map of the adapters' parameters to the files of peft.
TensorMap adapter_map(const std::vector<LoraTarget>& targets);

}  // namespace zs
