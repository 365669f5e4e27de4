#include "model/train/run_dir/export.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "model/data/output_file.h"
#include "model/families/family.h"
#include "model/families/hf_config.h"
#include "model/lora/lora_folder.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/tokenizer_config.h"
#include "model/train/config/config_schema.h"
#include "model/train/config/folder_model.h"
#include "model/train/run_dir/resume.h"
#include "model/train/run_dir/saved_model.h"
#include "model/weights/weight_export.h"
#include "model/weights/weight_files.h"
#include "model/weights/weight_import.h"
#include "runtime/base/not_fetched.h"
#include "runtime/shard/checkpoint/checkpoint_folder.h"
#include "runtime/shard/optimizers/optimizer.h"

namespace zs {
namespace {

namespace fs = std::filesystem;

bool is_file(const fs::path& path) {
  std::error_code failed;
  return fs::is_regular_file(path, failed);
}

/// The master weights of a checkpoint, or their average: before the first step that is the weights.
class CheckpointSource final : public ParameterSource {
 public:
  CheckpointSource(const std::string& folder, bool is_average)
      : reader_(folder), is_average_(is_average && reader_.manifest().step > 0) {
    bool has_average = false;
    for (const CheckpointTensor& tensor : reader_.manifest().tensors) {
      if (tensor.kind == kMaster) parameters_.push_back({tensor.parameter, tensor.shape});
      has_average = has_average || tensor.kind == Optimizer::kAverage;
    }
    if (is_average_ && !has_average)
      throw Error(ExitCode::checkpoint, "the checkpoint has no average of the weights", folder,
                  "leave --average out, or train with train.average");
  }
  const std::vector<ParameterShape>& parameters() const override { return parameters_; }
  void read(const std::string& parameter, std::int64_t first, std::int64_t count, float* out) override {
    auto tensor = is_average_ ? reader_.find(parameter, Optimizer::kAverage) : std::nullopt;
    if (!tensor) tensor = reader_.find(parameter, kMaster);  // a frozen parameter is its own average
    ZS_CHECK(tensor, "no weights of {}", parameter);
    reader_.read({{*tensor, first, {out, count, DType::f32, DeviceKind::cpu}}});
  }
  const std::map<std::string, std::string>& attributes() const { return reader_.manifest().attributes; }

 private:
  static constexpr const char* kMaster = "master";
  CheckpointReader reader_;
  bool is_average_;
  std::vector<ParameterShape> parameters_;
};

/// What save_weights has written: parameters by our names.
class SavedWeights final : public ParameterSource {
 public:
  explicit SavedWeights(const std::string& path) : files_(path) {
    for (const auto& [name, tensor] : files_.tensors())
      parameters_.push_back({name, Shape(files_.header_of(tensor).shape)});
  }
  const std::vector<ParameterShape>& parameters() const override { return parameters_; }
  void read(const std::string& parameter, std::int64_t first, std::int64_t count, float* out) override {
    files_.read(parameter, first * size_of(DType::f32), out, count * size_of(DType::f32));
  }

 private:
  WeightFiles files_;
  std::vector<ParameterShape> parameters_;
};

/// Files that others have written, as the parameters that they would be here.
class ImportedWeights final : public ParameterSource {
 public:
  ImportedWeights(std::unique_ptr<WeightImport> weights, std::vector<ParameterShape> parameters)
      : weights_(std::move(weights)), parameters_(std::move(parameters)) {
    for (const ParameterShape& parameter : parameters_) columns_[parameter.name] = columns_of(parameter.shape);
  }
  const std::vector<ParameterShape>& parameters() const override { return parameters_; }
  void read(const std::string& parameter, std::int64_t first, std::int64_t count, float* out) override {
    for (const Block& block : blocks_of(first, count, count, count, columns_.at(parameter))) {
      weights_->read(parameter, block, out);
      out += block.rows * block.columns;
    }
  }

 private:
  std::unique_ptr<WeightImport> weights_;
  std::vector<ParameterShape> parameters_;
  std::map<std::string, std::int64_t> columns_;
};

/// What is exported, and what it is.
struct ExportSource {
  ModelConfig model;
  LoraConfig lora;
  std::shared_ptr<ParameterSource> weights;
  std::string tokenizer;                               // its folder, or one of its files; empty: none is known
  std::shared_ptr<ParameterSource> adapter = weights;  // the same, or files of its own
};

Config config_of_attributes(const std::map<std::string, std::string>& attributes, const std::string& checkpoint) {
  constexpr std::string_view kPrefix = "config.";
  std::string text = "data.train = \"-\"\ntrain.steps = 1\ntrain.global_batch = 1\ntrain.sequence = 1\n";
  for (const auto& [name, value] : attributes) {
    const std::string key = name.substr(std::min(kPrefix.size(), name.size()));
    const bool is_of_model = key.starts_with("model.") || (key.starts_with("lora.") && key != "lora.path");
    if (name.starts_with(kPrefix) && (is_of_model || key == "data.tokenizer"))
      text += fmt::format("{} = {}\n", key, value);
  }
  return parse_config(text + "data.kind = \"tokens\"\n", checkpoint);
}

/// Tokenizer of the data, as far as that is known.
std::string tokenizer_of(const Config& config) {
  return config.data.tokenizer.empty() ? config.model.path : config.data.tokenizer;
}

ExportSource of_checkpoint(const std::string& folder, bool is_average) {
  auto weights = std::make_shared<CheckpointSource>(folder, is_average);
  Config config = config_of_attributes(weights->attributes(), folder);
  std::string tokenizer = tokenizer_of(config);
  if (const fs::path run = fs::absolute(folder + "/../..").lexically_normal(); is_file(run / "config.toml"))
    tokenizer = tokenizer_of(load_config((run / "config.toml").string()));  // its names are absolute
  return {std::move(config.model), std::move(config.lora), std::move(weights), std::move(tokenizer)};
}

void collect(const Module& module, std::vector<ParameterShape>& parameters) {
  for (const auto& parameter : module.own_parameters()) parameters.push_back({parameter->name(), parameter->shape()});
  for (const Module* child : module.children()) collect(*child, parameters);
}

/// `lora`: its path is that of an adapter, or empty.
ExportSource of_folder(const std::string& folder, const LoraConfig& lora = {}) {
  ModelConfig model = folder_model(folder);
  const Family& family = family_named(model.family);
  model.path = folder;
  std::vector<ParameterShape> parameters;
  collect(*family.make(model), parameters);
  ExportSource source{model,
                      {},
                      std::make_shared<ImportedWeights>(
                          std::make_unique<WeightImport>(folder, family.tensor_map(model), parameters), parameters),
                      folder};
  if (lora.path.empty()) return source;
  source.lora = lora;
  source.adapter = std::make_shared<ImportedWeights>(open_adapter(model, lora),
                                                     adapter_parameters(lora_targets(model, lora), lora.rank));
  return source;
}

/// The final weights of a run, or its newest checkpoint where that is newer, or has the average.
ExportSource of_run(const std::string& folder, bool is_average) {
  const std::string root = (fs::path(folder) / "checkpoints").string();
  const auto steps = list_checkpoints(root);
  const std::string newest = steps.empty() ? "" : step_folder(root, steps.back());
  if (!is_average && has_final_weights(folder, newest)) {
    const Config config = load_config((fs::path(folder) / "config.toml").string());
    return {config.model, config.lora, std::make_shared<SavedWeights>((fs::path(folder) / kFinalWeights).string()),
            tokenizer_of(config)};
  }
  if (steps.empty())
    throw Error(ExitCode::checkpoint,
                is_average ? "there is no checkpoint, which would have the average of the weights"
                           : "there are neither weights nor a checkpoint",
                folder, "name a run that has saved some");
  return of_checkpoint(newest, is_average);
}

ExportSource model_folder(const std::string& folder, bool is_average, const LoraConfig& lora = {}) {
  if (is_average)
    throw Error(ExitCode::usage, "--average of a model's folder, which has the weights alone", folder,
                "leave --average out, or name a run or a checkpoint");
  return of_folder(folder, lora);
}

ExportSource find_source(const std::string& from, bool is_average) {
  std::error_code failed;
  const fs::path path(from);
  if (!fs::exists(path, failed) && is_like_hub_name(from))
    throw Error(ExitCode::checkpoint, "there is no such folder", from, kFetchModel);
  if (!fs::is_directory(path, failed)) {
    const Config config = load_config(from);
    const std::string run = run_dir_asked_for(config, from, "latest");
    if (!run.empty() && RunMark::find(run)) return of_run(run, is_average);
    if (!config.model.path.empty()) return model_folder(config.model.path, is_average, config.lora);
    throw Error(ExitCode::checkpoint, "this configuration names no run and no model", from,
                "name a run, a checkpoint or a model's folder");
  }
  if (is_file(path / "config.toml")) return of_run(from, is_average);
  if (fs::exists(path / HfConfig::kFile, failed)) return model_folder(from, is_average);
  return of_checkpoint(from, is_average);
}

bool has_tokenizer(const ExportSource& source) {
  if (source.tokenizer.empty()) return false;
  const TokenizerFiles files = find_tokenizer_files(source.tokenizer);
  return !files.json.empty() || !files.pieces.empty();
}

/// The ids that begin and end a text: what transformers would take for them where config.json is silent is another
/// model's. Those of the folder that the model came from, else the tokenizer's, else null.
void set_special_ids(nlohmann::ordered_json& document, const ExportSource& source) {
  document["bos_token_id"] = document["eos_token_id"] = nullptr;
  if (has_tokenizer(source)) {
    const auto tokenizer = open_tokenizer(source.tokenizer);
    if (const auto id = tokenizer->begin_of_text()) document["bos_token_id"] = *id;
    if (const auto id = tokenizer->end_of_text()) document["eos_token_id"] = *id;
  }
  if (!is_file(fs::path(source.model.path) / HfConfig::kFile)) return;
  const HfConfig own = HfConfig::of_folder(source.model.path);
  for (const char* const key : {"bos_token_id", "eos_token_id", "pad_token_id"})
    if (own.document().contains(key)) document[key] = nlohmann::ordered_json::parse(own.document()[key].dump());
}

/// The model's own config.json where it still describes it, with the dtype that is written; else one of ours.
std::string config_json(const ExportSource& source, const std::string& dtype) {
  const ModelConfig& model = source.model;
  const Family& family = family_named(model.family);
  nlohmann::ordered_json document = family.to_config(model);
  set_special_ids(document, source);
  if (is_file(fs::path(model.path) / HfConfig::kFile)) {
    const HfConfig own = HfConfig::of_folder(model.path);
    ModelConfig theirs = family.from_config(own);
    family.derive(theirs);
    theirs.path = model.path;
    theirs.preset = model.preset;
    if (theirs == model) document = nlohmann::ordered_json::parse(own.document().dump());
  }
  const char* const name = dtype == "f32" ? "float32" : dtype == "f16" ? "float16" : "bfloat16";
  if (document.contains("torch_dtype")) document["torch_dtype"] = name;
  document["dtype"] = name;
  return document.dump(2) + "\n";
}

FileDType dtype_named(const std::string& name) {
  return name == "f16" ? FileDType::f16 : name == "bf16" ? FileDType::bf16 : FileDType::f32;
}

bool is_gguf(const std::string& path) {
  std::string ending = path.substr(path.size() - std::min<std::size_t>(path.size(), 5));
  for (char& c : ending) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return ending == ".gguf";
}

/// Before anything is written.
void check_target(const std::string& to, const std::string& dtype) {
  if (dtype == "q8_0" && !is_gguf(to))
    throw Error(ExitCode::config, "q8_0 is for GGUF files alone", to,
                "name a file that ends with .gguf, or another dtype");
  std::error_code failed;
  const fs::file_status status = fs::symlink_status(to, failed);
  if (fs::exists(status) && (is_gguf(to) || !fs::is_directory(status) || !fs::is_empty(to, failed)))
    throw Error(ExitCode::cannot_create, "there is something where the model would be written", to,
                "choose a new name");
  fs::path parent = fs::absolute(to).lexically_normal().parent_path();
  while (!fs::exists(parent, failed) && parent.has_relative_path()) parent = parent.parent_path();
  if (!fs::is_directory(parent, failed) || ::access(parent.c_str(), W_OK | X_OK) != 0)
    throw Error(ExitCode::cannot_create, "the folder of the export cannot be made, or not be written to",
                parent.string(), "choose another place");
}

std::vector<std::string> write_gguf(ParameterSource& weights, const ExportSource& source, const ExportJob& job) {
  const GgufDType dtype = job.dtype == "q8_0"   ? GgufDType::q8_0
                          : job.dtype == "f16"  ? GgufDType::f16
                          : job.dtype == "bf16" ? GgufDType::bf16
                                                : GgufDType::f32;
  const TensorMap map = family_named(source.model.family).tensor_map(source.model);
  return export_gguf(weights, {map, family_named(source.model.family).gguf, source.model, source.tokenizer}, job.to,
                     dtype);
}

void write_folder(ParameterSource& weights, const ExportSource& source, const ExportJob& job) {
  OutputFolder folder(job.to);
  const TensorMap map = family_named(source.model.family).tensor_map(source.model);
  export_safetensors(weights, map, folder.writing(), {dtype_named(job.dtype), job.shard_mib << 20});
  copy_companions(source.model.path, source.tokenizer, folder.writing());
  write_file_atomically((fs::path(folder.writing()) / HfConfig::kFile).string(), config_json(source, job.dtype));
  folder.commit();
}

void write_adapter(const ExportSource& source, const std::string& to) {
  if (!source.lora.is_on())
    throw Error(ExitCode::config, "the model has no adapter", to, "name a run with lora.rank, or leave --adapter out");
  OutputFolder folder(to);
  export_adapter(*adapters_of(source.adapter), source.model, source.lora, folder.writing());
  folder.commit();
}

std::vector<std::string> write_model(const ExportSource& source, const ExportJob& job) {
  if (job.is_adapter) {
    write_adapter(source, job.to);
    return {};
  }
  const std::shared_ptr<ParameterSource> weights =
      source.lora.is_on()
          ? std::shared_ptr<ParameterSource>(merged(source.weights, source.adapter, source.model, source.lora))
          : source.weights;
  std::vector<std::string> warnings;
  if (is_gguf(job.to)) {
    warnings = write_gguf(*weights, source, job);
  } else {
    write_folder(*weights, source, job);
  }
  if (!source.tokenizer.empty() && !has_tokenizer(source))
    warnings.push_back(fmt::format("exported without a tokenizer: there is none in {}", source.tokenizer));
  return warnings;
}

/// Of a run that has ended.
ExportSource of_weights(const Config& config, const std::string& weights) {
  return {config.model, config.lora, std::make_shared<SavedWeights>(weights), tokenizer_of(config)};
}

}  // namespace

std::vector<std::string> export_model(const ExportJob& job) {
  if (job.is_adapter && (is_gguf(job.to) || (!job.dtype.empty() && job.dtype != "f32")))
    throw Error(ExitCode::usage, "an adapter is written as a folder, in f32", job.to,
                "leave out --adapter, or --dtype and the ending .gguf");
  check_target(job.to, job.dtype);
  const ExportSource source = find_source(job.from, job.is_average);
  ExportJob own = job;
  if (own.dtype.empty())
    own.dtype = is_file(fs::path(source.model.path) / HfConfig::kFile) ? folder_dtype(source.model.path) : "f32";
  return write_model(source, own);
}

std::vector<std::string> export_run(const Config& config, const std::string& weights) {
  return write_model(of_weights(config, weights), {.to = config.run.export_to,
                                                   .from = "",
                                                   .dtype = config.run.export_dtype,
                                                   .shard_mib = config.run.export_shard_mib});
}

void export_run_adapter(const Config& config, const std::string& weights) {
  write_adapter(of_weights(config, weights), config.lora.export_to);
}

void check_export(const Config& config) {
  if (!config.run.export_to.empty()) check_target(config.run.export_to, config.run.export_dtype);
  if (is_gguf(config.run.export_to)) check_gguf(config.model, tokenizer_of(config));
  if (!config.lora.export_to.empty()) check_target(config.lora.export_to, "f32");
}

}  // namespace zs
