#include "model/families/gguf.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <future>
#include <map>
#include <thread>
#include <utility>

#include "model/families/family.h"
#include "model/families/gguf_blocks.h"
#include "model/families/gguf_tokenizer.h"

namespace zs {
namespace {

constexpr std::int64_t kGgufAlignment = 32, kRowsElems = std::int64_t{1} << 20;

struct FileTypeRow {
  std::string_view name;
  std::int64_t number;  // llama.cpp's
  GgufDType dtype;      // most matrices have it
};
constexpr std::array kFileTypes = {
    FileTypeRow{"f32", 0, GgufDType::f32},    FileTypeRow{"f16", 1, GgufDType::f16},
    FileTypeRow{"bf16", 32, GgufDType::bf16}, FileTypeRow{"q8_0", 7, GgufDType::q8_0},
    FileTypeRow{"q6_K", 18, GgufDType::q6_k}, FileTypeRow{"q4_K_M", 15, GgufDType::q4_k}};
static_assert(kFileTypes.size() == static_cast<std::size_t>(GgufFileType::q4_k_m) + 1);

const FileTypeRow& row_of(GgufFileType type) { return kFileTypes[static_cast<std::size_t>(type)]; }

struct GgufTensor {
  std::string name, parameter;
  std::int64_t row, rows, columns;
  int rank;
  std::int64_t heads;  ///< whose rows change places; 0: none do
  GgufDType dtype;
  float factor = 1, offset = 0;  ///< all its numbers are stored times this, and with this added
  /// Experts whose rows these are, `apart` from each other in the parameter; 0: there are none.
  std::int64_t experts = 0, apart = 0;

  std::int64_t matrices() const { return std::max<std::int64_t>(1, experts); }
  std::int64_t bytes() const { return stored_bytes(dtype, matrices() * rows * columns); }
  /// Rows that belong together.
  std::int64_t rows_at_once() const {
    return heads > 0 ? rows / heads : std::max<std::int64_t>(1, kRowsElems / columns);
  }
};

/// llama.cpp's names for parts of a block, and for what is outside of them.
const std::map<std::string, std::vector<std::string>> kGgufNames = {
    {"token_embedding", {"token_embd"}},
    {"position_embedding", {"position_embd"}},
    {"norm", {"output_norm"}},
    {"head", {"output"}},
    {"norm1", {"attn_norm"}},
    {"output_norm1", {"post_attention_norm"}},
    {"output_norm2", {"post_ffw_norm"}},
    {"attention.qkv", {"attn_q", "attn_k", "attn_v"}},
    {"attention.q_norm", {"attn_q_norm"}},
    {"attention.k_norm", {"attn_k_norm"}},
    {"attention.out", {"attn_output"}},
    {"norm2", {"ffn_norm"}},
    {"mlp.gate_up", {"ffn_gate", "ffn_up"}},
    {"mlp.up", {"ffn_up"}},
    {"mlp.down", {"ffn_down"}},
    {"mlp.router", {"ffn_gate_inp"}},
    {"mlp.shared.gate_up", {"ffn_gate_shexp", "ffn_up_shexp"}},
    {"mlp.shared.down", {"ffn_down_shexp"}},
    {"mlp.shared_gate", {"ffn_gate_inp_shexp"}},
};

/// "blk.3." of "blocks.3.attention.qkv.weight", and the rest of it; empty where it is of no block.
std::pair<std::string, std::string> block_and_rest(const std::string& parameter) {
  constexpr std::string_view kBlocks = "blocks.";
  if (!parameter.starts_with(kBlocks)) return {"", parameter};
  const auto dot = parameter.find('.', kBlocks.size());
  return {"blk." + parameter.substr(kBlocks.size(), dot + 1 - kBlocks.size()), parameter.substr(dot + 1)};
}

/// "blk.3.attn_q.weight" of the first part of "blocks.3.attention.qkv.weight".
std::string gguf_name(const TensorRule& rule, std::size_t part, const GgufFamily& family) {
  const auto [block, rest] = block_and_rest(rule.parameter);
  if (rest == "attention.sinks") return block + "attn_sinks.weight";
  const std::string module = rest.substr(0, rest.rfind('.')), kind = rest.substr(rest.rfind('.'));
  if (module == "norm2") return block + family.norm2 + kind;
  const bool is_fused = module == "attention.qkv" && rule.parts.size() == 1;
  return block + (is_fused ? "attn_qkv" : kGgufNames.at(module).at(part)) + kind;
}

/// llama.cpp's choice of the matrices that q4_K_M holds in six bits: those of the first and last eighth of the blocks,
/// and of every third between.
bool has_six_bits(const std::string& name, std::int64_t layers, bool is_tied) {
  if (name == (is_tied ? "token_embd.weight" : "output.weight") || name.ends_with("attn_qkv.weight")) return true;
  if (!name.ends_with("attn_v.weight") && name.find(".ffn_down") == name.npos) return false;
  constexpr std::size_t kBlock = std::string_view("blk.").size();
  const std::int64_t block = std::stoll(name.substr(kBlock)), eighth = layers / 8;
  return block < eighth || block >= 7 * layers / 8 || (block - eighth) % 3 == 2;
}

GgufDType stored_as(GgufFileType type, const std::string& name, int rank, std::int64_t columns,
                    const ModelConfig& model) {
  if (rank < 2 || name == "position_embd.weight" || name.find("ffn_gate_inp") != name.npos) return GgufDType::f32;
  GgufDType dtype = row_of(type).dtype;
  if (dtype == GgufDType::q4_k && has_six_bits(name, model.layers, model.tied_head)) dtype = GgufDType::q6_k;
  for (const GgufDType instead : {GgufDType::q8_0, GgufDType::f16})
    if (columns % block_elems(dtype) != 0) dtype = instead;
  return dtype;
}

/// Number of heads whose rows change places in a tensor.
std::int64_t permuted_heads(const GgufFamily& family, const ModelConfig& model, const std::string& name) {
  if (!family.permutes_heads) return 0;
  return name.ends_with("attn_q.weight") ? model.heads : name.ends_with("attn_k.weight") ? model.kv_heads : 0;
}

/// Adds a layer's packed experts: gates and others are tensors of their own.
void add_experts(std::vector<GgufTensor>& tensors, const std::string& parameter, const Shape& shape,
                 const ModelConfig& model, GgufFileType type) {
  const auto [block, rest] = block_and_rest(parameter);
  const bool is_pair = rest.find("gate_up") != rest.npos, is_bias = rest.ends_with("_bias");
  const std::int64_t apart = shape[0] / model.experts, rows = apart / (is_pair ? 2 : 1), columns = columns_of(shape);
  const std::vector<const char*> names =
      is_pair ? std::vector{"ffn_gate_exps", "ffn_up_exps"} : std::vector{"ffn_down_exps"};
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string name = block + names[i] + (is_bias ? ".bias" : ".weight");
    tensors.push_back({.name = name,
                       .parameter = parameter,
                       .row = static_cast<std::int64_t>(i) * rows,
                       .rows = rows,
                       .columns = columns,
                       .rank = shape.rank(),
                       .heads = 0,
                       .dtype = stored_as(type, name, shape.rank(), columns, model),
                       .experts = model.experts,
                       .apart = apart});
  }
}

std::vector<GgufTensor> gguf_tensors(const TensorMap& map, const std::vector<ParameterShape>& parameters,
                                     const GgufFamily& family, const ModelConfig& model, GgufFileType type) {
  exported_tensors(map, parameters);  // for its checks
  std::map<std::string, Shape> shapes;
  for (const ParameterShape& parameter : parameters) shapes[parameter.name] = parameter.shape;
  std::vector<GgufTensor> tensors;
  for (const TensorRule& rule : map.rules) {
    const Shape& shape = shapes.at(rule.parameter);
    if (rule.parameter.find(".experts.") != rule.parameter.npos) {
      add_experts(tensors, rule.parameter, shape, model, type);
      continue;
    }
    std::int64_t row = 0;
    for (std::size_t i = 0; i < rule.parts.size(); ++i) {
      const std::string name = gguf_name(rule, i, family);
      const std::int64_t rows = rule.parts[i].rows != 0 ? rule.parts[i].rows : rows_of(shape);
      tensors.push_back({name, rule.parameter, row, rows, columns_of(shape), shape.rank(),
                         permuted_heads(family, model, name),
                         stored_as(type, name, shape.rank(), columns_of(shape), model)});
      GgufTensor& made = tensors.back();
      if (name.ends_with("norm.weight")) made.offset = family.norm_offset;
      if (made.rank == 2 && rows_of(shape) == 1)  // a vector in llama.cpp
        made.rows = std::exchange(made.columns, 1), made.rank = 1, made.dtype = GgufDType::f32;
      row += rows;
    }
  }
  return tensors;
}

void add_sizes(GgufFields& fields, const GgufFamily& family, const ModelConfig& model, GgufFileType type) {
  const std::string arch = family.architecture, prefix = arch + ".";
  const bool is_rotary = model.kv_heads > 0;
  const std::int64_t head_dim = model.head_dim > 0 ? model.head_dim : model.width / model.heads;
  fields.add("general.architecture", arch);
  fields.add("general.name", model.family);
  fields.add("general.file_type", row_of(type).number);
  fields.add("general.quantization_version", std::int64_t{2});
  fields.add(prefix + "block_count", model.layers);
  fields.add(prefix + "context_length", model.context);
  fields.add(prefix + "embedding_length", model.width);
  fields.add(prefix + "feed_forward_length", model.hidden > 0 ? model.hidden : 4 * model.width);
  fields.add(prefix + "attention.head_count", model.heads);
  fields.add(prefix + "vocab_size", model.vocab);
  if (!is_rotary) return fields.add(prefix + "attention.layer_norm_epsilon", model.norm_eps);
  fields.add(prefix + "attention.head_count_kv", model.kv_heads);
  fields.add(prefix + "attention.key_length", head_dim);
  fields.add(prefix + "attention.value_length", head_dim);
  fields.add(prefix + "attention.layer_norm_rms_epsilon", model.norm_eps);
  fields.add(prefix + "rope.freq_base", model.rotary_base);
  fields.add(prefix + "rope.dimension_count", head_dim);
  if (model.window > 0) fields.add(prefix + "attention.sliding_window", model.window);
  if (model.rotary_scaling == "linear" || model.rotary_scaling == "yarn") {
    fields.add(prefix + "rope.scaling.type", model.rotary_scaling);
    fields.add(prefix + "rope.scaling.factor", model.rotary_factor);
  }
  if (model.rotary_scaling == "yarn") fields.add(prefix + "rope.scaling.original_context_length", model.rotary_context);
  if (model.experts == 0) return;
  fields.add(prefix + "expert_count", model.experts);
  fields.add(prefix + "expert_used_count", model.experts_per_token);
  fields.add(prefix + "expert_feed_forward_length", model.expert_hidden > 0 ? model.expert_hidden : model.hidden);
  if (model.shared_expert_hidden > 0)
    fields.add(prefix + "expert_shared_feed_forward_length", model.shared_expert_hidden);
}

/// Setting by which llama.cpp computes another model; null: none.
const char* difference_of(const GgufFamily& family, const ModelConfig& model) {
  if (model.rotary_scaling == "yarn" && (model.rotary_low != 1 || model.rotary_high != 32))
    return "model.rotary_low and model.rotary_high are other than 1 and 32";
  if (model.rotary_scaling == "yarn" && !model.rotary_truncate && !family.rounds_ramp)
    return "model.rotary_truncate is false";
  return family.difference != nullptr ? family.difference(model) : nullptr;
}

/// Factors that the angles of Llama 3 are divided by, one for each pair (Grattafiori et al. 2024; the formula of
/// transformers' llama3 positions).
std::vector<float> llama3_factors(const ModelConfig& model) {
  const std::int64_t head_dim = model.head_dim > 0 ? model.head_dim : model.width / model.heads;
  const auto context = static_cast<double>(model.rotary_context);
  std::vector<float> factors;
  for (std::int64_t i = 0; i < head_dim; i += 2) {
    const double wavelength =
        2 * M_PI * std::pow(model.rotary_base, static_cast<double>(i) / static_cast<double>(head_dim));
    const double smooth =
        std::clamp((context / wavelength - model.rotary_low) / (model.rotary_high - model.rotary_low), 0.0, 1.0);
    factors.push_back(static_cast<float>(1 / ((1 - smooth) / model.rotary_factor + smooth)));
  }
  return factors;
}

/// Halves of a head one after the other become pairs.
void pair_rows(std::vector<float>& values, std::int64_t rows, std::int64_t columns) {
  const std::vector<float> from = values;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t old = row % 2 * (rows / 2) + row / 2;
    std::copy_n(from.begin() + old * columns, columns, values.begin() + row * columns);
  }
}

/// Shares the blocks among the processors: fitting four bits is long work.
void store_rows(const GgufTensor& tensor, const std::vector<float>& values, std::vector<char>& stored) {
  const std::int64_t elems = block_elems(tensor.dtype), blocks = std::ssize(values) / elems;
  const std::int64_t processors = std::thread::hardware_concurrency();
  const std::int64_t parts = elems == 1 ? 1 : std::clamp<std::int64_t>(processors, 1, blocks);
  std::vector<std::future<void>> running;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t first = part * blocks / parts * elems, count = (part + 1) * blocks / parts * elems - first;
    running.push_back(std::async([&tensor, &values, &stored, first, count] {
      store_numbers(tensor.dtype, values.data() + first, count, stored.data() + stored_bytes(tensor.dtype, first),
                    tensor.name);
    }));
  }
  for (std::future<void>& each : running) each.get();
}

void write_values(OutputFile& file, ParameterSource& source, const GgufTensor& tensor) {
  std::vector<float> values;
  std::vector<char> stored;
  const auto write_rows = [&](std::int64_t first, std::int64_t rows) {
    const std::int64_t count = rows * tensor.columns;
    values.resize(static_cast<std::size_t>(count));
    source.read(tensor.parameter, first * tensor.columns, count, values.data());
    if (tensor.heads > 0) pair_rows(values, rows, tensor.columns);
    if (tensor.factor != 1 || tensor.offset != 0)
      for (float& value : values) value = value * tensor.factor + tensor.offset;
    stored.resize(static_cast<std::size_t>(stored_bytes(tensor.dtype, count)));
    store_rows(tensor, values, stored);
    file.write(stored.data(), stored.size());
  };
  for (std::int64_t matrix = 0; matrix < tensor.matrices(); ++matrix)
    for (std::int64_t row = 0; row < tensor.rows; row += tensor.rows_at_once())
      write_rows(tensor.row + matrix * tensor.apart + row, std::min(tensor.rows_at_once(), tensor.rows - row));
}

void pad(OutputFile& file, std::int64_t bytes) {
  constexpr char kZeros[kGgufAlignment] = {};
  file.write(kZeros, static_cast<std::size_t>((kGgufAlignment - bytes % kGgufAlignment) % kGgufAlignment));
}

void put_tensor(GgufFields& to, const std::string& name, const std::vector<std::int64_t>& dims, GgufDType dtype,
                std::int64_t offset) {
  to.put_text(name);
  to.put(static_cast<std::uint32_t>(dims.size()));
  for (const std::int64_t dim : dims) to.put(static_cast<std::uint64_t>(dim));
  to.put(number_of(dtype));
  to.put(static_cast<std::uint64_t>(offset));
}

/// A whole file: what is said of the model, where each tensor is, and these; `factors`: those of positions.
void write_file(const GgufFields& fields, const std::vector<GgufTensor>& tensors, const std::vector<float>& factors,
                ParameterSource& source, OutputFile& file) {
  GgufFields infos, header;
  std::int64_t offset = 0;
  const auto place = [&](std::int64_t bytes) {
    const std::int64_t at = offset;
    offset += (bytes + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment;
    return at;
  };
  for (const GgufTensor& tensor : tensors) {
    std::vector<std::int64_t> dims = {tensor.rows};
    if (tensor.rank >= 2) dims.insert(dims.begin(), tensor.columns);
    if (tensor.experts > 0) dims.push_back(tensor.experts);
    put_tensor(infos, tensor.name, dims, tensor.dtype, place(tensor.bytes()));
  }
  const std::int64_t factor_bytes = std::ssize(factors) * std::int64_t{sizeof(float)};
  if (!factors.empty())
    put_tensor(infos, "rope_freqs.weight", {std::ssize(factors)}, GgufDType::f32, place(factor_bytes));
  header.put(std::uint32_t{0x46554747});  // "GGUF"
  header.put(std::uint32_t{3});
  header.put(static_cast<std::uint64_t>(tensors.size() + (factors.empty() ? 0 : 1)));
  header.put(fields.count());
  for (const GgufFields* const part : std::initializer_list<const GgufFields*>{&header, &fields, &infos})
    file.write(part->bytes().data(), part->bytes().size());
  pad(file, std::ssize(header.bytes()) + std::ssize(fields.bytes()) + std::ssize(infos.bytes()));
  for (const GgufTensor& tensor : tensors) {
    write_values(file, source, tensor);
    pad(file, tensor.bytes());
  }
  file.write(factors.data(), static_cast<std::size_t>(factor_bytes));
  pad(file, factor_bytes);
}

/// Name of the tensor that has the parameter's rows from `row` on.
std::string tensor_of(const GgufModel& of, const std::string& parameter, std::int64_t row) {
  for (const TensorRule& rule : of.map.rules) {
    if (rule.parameter != parameter) continue;
    std::int64_t first = 0;
    for (std::size_t part = 0; part < rule.parts.size(); first += rule.parts[part++].rows)
      if (first == row) return gguf_name(rule, part, of.family);
  }
  ZS_CHECK(false, "no tensor has rows of {} from {} on", parameter, row);
}

}  // namespace

std::optional<GgufFileType> find_gguf_type(std::string_view name) {
  for (std::size_t i = 0; i < kFileTypes.size(); ++i)
    if (kFileTypes[i].name == name) return static_cast<GgufFileType>(i);
  return std::nullopt;
}

void check_gguf_names(const ModelConfig& model) {
  if (family_named(model.family).gguf.architecture == nullptr)
    throw Error(ExitCode::model, fmt::format("a {} does not become a GGUF file yet", model.family), {},
                "export a folder, and convert that with llama.cpp's convert_hf_to_gguf.py");
  if (const char* const difference = difference_of(family_named(model.family).gguf, model))
    throw Error(ExitCode::model, fmt::format("llama.cpp would compute another model: {}", difference), {},
                "export a folder instead");
}

void check_gguf(const ModelConfig& model, const std::string& tokenizer) {
  check_gguf_names(model);
  GgufFields fields;
  add_gguf_tokenizer(fields, model, tokenizer);
}

std::vector<std::string> export_gguf(ParameterSource& source, const GgufModel& of, OutputFile& file,
                                     GgufFileType type) {
  const ModelConfig& model = of.model;
  check_gguf_names(model);
  GgufFields fields;
  add_sizes(fields, of.family, model, type);
  std::vector<std::string> warnings = add_gguf_tokenizer(fields, model, of.tokenizer);
  const std::vector<GgufTensor> tensors = gguf_tensors(of.map, source.parameters(), of.family, model, type);
  const std::vector<float> factors = model.rotary_scaling == "llama3" ? llama3_factors(model) : std::vector<float>();
  write_file(fields, tensors, factors, source, file);
  return warnings;
}

void export_gguf_adapter(ParameterSource& source, const GgufModel& of, const std::vector<GgufFactors>& factors,
                         double alpha, OutputFile& file) {
  check_gguf_names(of.model);
  GgufFields fields;
  fields.add("general.architecture", std::string(of.family.architecture));
  fields.add("general.type", std::string("adapter"));
  fields.add("general.name", of.model.family);
  fields.add("general.file_type", row_of(GgufFileType::f32).number);
  fields.add("adapter.type", std::string("lora"));
  fields.add("adapter.lora.alpha", alpha);
  std::vector<GgufTensor> tensors;
  for (const GgufFactors& one : factors) {
    const std::string name = tensor_of(of, one.parameter, one.row);
    constexpr double kRounding = 1e-6;  // alpha / rank is an f32
    const double factor = one.scale * static_cast<double>(one.rank) / alpha;
    tensors.push_back({name + ".lora_a", one.a, 0, one.rank, one.columns, 2, 0, GgufDType::f32});
    tensors.push_back({name + ".lora_b", one.b, 0, one.rows, one.rank, 2, permuted_heads(of.family, of.model, name),
                       GgufDType::f32, std::fabs(factor - 1) < kRounding ? 1 : static_cast<float>(factor)});
  }
  write_file(fields, tensors, {}, source, file);
}

}  // namespace zs
