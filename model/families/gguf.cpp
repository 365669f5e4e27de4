#include "model/families/gguf.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "model/families/family.h"
#include "model/families/gguf_tokenizer.h"

namespace zs {
namespace {

constexpr std::int64_t kGgufAlignment = 32, kQuantBlock = 32, kRowsElems = std::int64_t{1} << 20;

struct GgufTensor {
  std::string name, parameter;
  std::int64_t row, rows, columns;
  int rank;
  std::int64_t heads;  ///< whose rows change places; 0: none do
  GgufDType dtype;

  std::int64_t bytes() const {
    if (dtype == GgufDType::q8_0) return rows * columns / kQuantBlock * (kQuantBlock + 2);
    return rows * columns * (dtype == GgufDType::f32 ? 4 : 2);
  }
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
    {"attention.qkv", {"attn_q", "attn_k", "attn_v"}},
    {"attention.q_norm", {"attn_q_norm"}},
    {"attention.k_norm", {"attn_k_norm"}},
    {"attention.out", {"attn_output"}},
    {"norm2", {"ffn_norm"}},
    {"mlp.gate_up", {"ffn_gate", "ffn_up"}},
    {"mlp.up", {"ffn_up"}},
    {"mlp.down", {"ffn_down"}},
};

/// "blk.3.attn_q.weight" of the first part of "blocks.3.attention.qkv.weight".
std::string gguf_name(const TensorRule& rule, std::size_t part) {
  std::string module = rule.parameter.substr(0, rule.parameter.rfind('.')), block;
  const std::string kind = rule.parameter.substr(rule.parameter.rfind('.'));
  if (constexpr std::string_view kBlocks = "blocks."; module.starts_with(kBlocks)) {
    const auto dot = module.find('.', kBlocks.size());
    block = "blk." + module.substr(kBlocks.size(), dot + 1 - kBlocks.size());
    module.erase(0, dot + 1);
  }
  const bool is_fused = module == "attention.qkv" && rule.parts.size() == 1;
  return block + (is_fused ? "attn_qkv" : kGgufNames.at(module).at(part)) + kind;
}

GgufDType stored_as(GgufDType wanted, const std::string& name, int rank, std::int64_t columns) {
  if (rank < 2 || name == "position_embd.weight") return GgufDType::f32;
  return wanted == GgufDType::q8_0 && columns % kQuantBlock != 0 ? GgufDType::f16 : wanted;
}

std::vector<GgufTensor> gguf_tensors(const TensorMap& map, const std::vector<ParameterShape>& parameters,
                                     const GgufFamily& family, const ModelConfig& model, GgufDType dtype) {
  exported_tensors(map, parameters);  // for its checks
  std::map<std::string, Shape> shapes;
  for (const ParameterShape& parameter : parameters) shapes[parameter.name] = parameter.shape;
  std::vector<GgufTensor> tensors;
  for (const TensorRule& rule : map.rules) {
    const Shape& shape = shapes.at(rule.parameter);
    std::int64_t row = 0;
    for (std::size_t i = 0; i < rule.parts.size(); ++i) {
      const std::string name = gguf_name(rule, i);
      const std::int64_t rows = rule.parts[i].rows != 0 ? rule.parts[i].rows : rows_of(shape);
      const bool is_q = name.ends_with("attn_q.weight"), is_k = name.ends_with("attn_k.weight");
      const std::int64_t heads = !family.permutes_heads ? 0 : is_q ? model.heads : is_k ? model.kv_heads : 0;
      tensors.push_back({name, rule.parameter, row, rows, columns_of(shape), shape.rank(), heads,
                         stored_as(dtype, name, shape.rank(), columns_of(shape))});
      row += rows;
    }
  }
  return tensors;
}

void add_sizes(GgufFields& fields, const GgufFamily& family, const ModelConfig& model, GgufDType dtype) {
  constexpr std::int64_t kFileTypes[] = {0, 1, 32, 7};
  const std::string arch = family.architecture, prefix = arch + ".";
  const bool is_rotary = model.kv_heads > 0;
  const std::int64_t head_dim = model.head_dim > 0 ? model.head_dim : model.width / model.heads;
  fields.add("general.architecture", arch);
  fields.add("general.name", model.family);
  fields.add("general.file_type", kFileTypes[static_cast<std::size_t>(dtype)]);
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
  if (model.rotary_scaling != "linear") return;
  fields.add(prefix + "rope.scaling.type", std::string("linear"));
  fields.add(prefix + "rope.scaling.factor", model.rotary_factor);
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

/// Blocks of 32: the largest magnitude / 127 as f16, then the multiples of it.
void quantize(const float* values, std::int64_t count, char* out, const std::string& tensor) {
  for (std::int64_t block = 0; block < count; block += kQuantBlock, values += kQuantBlock) {
    float most = 0;
    for (std::int64_t i = 0; i < kQuantBlock; ++i) most = std::max(most, std::fabs(values[i]));
    const float scale = most / 127, inverse = scale > 0 ? 1 / scale : 0;
    check_overflow(FileDType::f16, &scale, 1, tensor);
    from_f32(FileDType::f16, &scale, out, 1);
    out += 2;
    for (std::int64_t i = 0; i < kQuantBlock; ++i) *out++ = static_cast<char>(std::lround(values[i] * inverse));
  }
}

/// Halves of a head one after the other become pairs.
void pair_rows(std::vector<float>& values, std::int64_t rows, std::int64_t columns) {
  const std::vector<float> from = values;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t old = row % 2 * (rows / 2) + row / 2;
    std::copy_n(from.begin() + old * columns, columns, values.begin() + row * columns);
  }
}

void write_values(OutputFile& file, ParameterSource& source, const GgufTensor& tensor) {
  std::vector<float> values;
  std::vector<char> stored;
  for (std::int64_t row = 0; row < tensor.rows; row += tensor.rows_at_once()) {
    const std::int64_t rows = std::min(tensor.rows_at_once(), tensor.rows - row), count = rows * tensor.columns;
    values.resize(static_cast<std::size_t>(count));
    source.read(tensor.parameter, (tensor.row + row) * tensor.columns, count, values.data());
    if (tensor.heads > 0) pair_rows(values, rows, tensor.columns);
    stored.resize(static_cast<std::size_t>(tensor.bytes() / tensor.rows * rows));
    if (tensor.dtype == GgufDType::q8_0) {
      quantize(values.data(), count, stored.data(), tensor.name);
    } else {
      constexpr FileDType kTypes[] = {FileDType::f32, FileDType::f16, FileDType::bf16};
      const FileDType dtype = kTypes[static_cast<std::size_t>(tensor.dtype)];
      check_overflow(dtype, values.data(), count, tensor.name);
      from_f32(dtype, values.data(), stored.data(), count);
    }
    file.write(stored.data(), stored.size());
  }
}

void pad(OutputFile& file, std::int64_t bytes) {
  constexpr char kZeros[kGgufAlignment] = {};
  file.write(kZeros, static_cast<std::size_t>((kGgufAlignment - bytes % kGgufAlignment) % kGgufAlignment));
}

void put_tensor(GgufFields& to, const std::string& name, const std::vector<std::int64_t>& dims, GgufDType dtype,
                std::int64_t offset) {
  constexpr std::uint32_t kTypes[] = {0, 1, 30, 8};
  to.put_text(name);
  to.put(static_cast<std::uint32_t>(dims.size()));
  for (const std::int64_t dim : dims) to.put(static_cast<std::uint64_t>(dim));
  to.put(kTypes[static_cast<std::size_t>(dtype)]);
  to.put(static_cast<std::uint64_t>(offset));
}

void require_names(const ModelConfig& model) {
  if (family_named(model.family).gguf.architecture == nullptr)
    throw Error(ExitCode::model, fmt::format("a {} does not become a GGUF file yet", model.family), {},
                "export a folder, and convert that with llama.cpp's convert_hf_to_gguf.py");
}

}  // namespace

void check_gguf(const ModelConfig& model, const std::string& tokenizer) {
  require_names(model);
  GgufFields fields;
  add_gguf_tokenizer(fields, model, tokenizer);
}

std::vector<std::string> export_gguf(ParameterSource& source, const GgufModel& of, OutputFile& file, GgufDType dtype) {
  const ModelConfig& model = of.model;
  require_names(model);
  GgufFields fields, infos, header;
  add_sizes(fields, of.family, model, dtype);
  std::vector<std::string> warnings = add_gguf_tokenizer(fields, model, of.tokenizer);
  const std::vector<GgufTensor> tensors = gguf_tensors(of.map, source.parameters(), of.family, model, dtype);
  const std::vector<float> factors = model.rotary_scaling == "llama3" ? llama3_factors(model) : std::vector<float>();
  std::int64_t offset = 0;
  const auto place = [&](std::int64_t bytes) {
    const std::int64_t at = offset;
    offset += (bytes + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment;
    return at;
  };
  for (const GgufTensor& tensor : tensors) {
    std::vector<std::int64_t> dims = {tensor.rows};
    if (tensor.rank >= 2) dims.insert(dims.begin(), tensor.columns);
    put_tensor(infos, tensor.name, dims, tensor.dtype, place(tensor.bytes()));
  }
  const std::int64_t factor_bytes = std::ssize(factors) * std::int64_t{sizeof(float)};
  if (!factors.empty())
    put_tensor(infos, "rope_freqs.weight", {std::ssize(factors)}, GgufDType::f32, place(factor_bytes));
  header.put(std::uint32_t{0x46554747});  // "GGUF"
  header.put(std::uint32_t{3});
  header.put(static_cast<std::uint64_t>(tensors.size() + (factors.empty() ? 0 : 1)));
  header.put(fields.count());
  for (const GgufFields* part : {&header, &fields, &infos}) file.write(part->bytes().data(), part->bytes().size());
  pad(file, std::ssize(header.bytes()) + std::ssize(fields.bytes()) + std::ssize(infos.bytes()));
  for (const GgufTensor& tensor : tensors) {
    write_values(file, source, tensor);
    pad(file, tensor.bytes());
  }
  file.write(factors.data(), static_cast<std::size_t>(factor_bytes));
  pad(file, factor_bytes);
  return warnings;
}

}  // namespace zs
