#include "model/train/run_dir/export.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "model/data/output_file.h"
#include "model/families/family.h"
#include "model/families/hf_config.h"
#include "model/lora/lora_folder.h"
#include "model/lora/saved_modules.h"
#include "model/train/config/config_schema.h"
#include "model/train/config/folder_model.h"
#include "model/train/config/key_use.h"
#include "model/train/config/toml_text.h"
#include "model/train/rank/error_line.h"
#include "model/train/run_dir/export_config.h"
#include "model/train/run_dir/export_sources.h"
#include "model/train/run_dir/frozen_weights.h"
#include "model/train/run_dir/resume.h"
#include "model/train/run_dir/saved_model.h"
#include "model/weights/weight_export.h"
#include "model/weights/weight_files.h"
#include "model/weights/weight_import.h"
#include "runtime/base/not_fetched.h"
#include "runtime/shard/checkpoint/checkpoint_folder.h"
#include "runtime/shard/checkpoint/checkpoint_updates.h"
#include "runtime/shard/optimizers/optimizer.h"

namespace zs {
namespace {

namespace fs = std::filesystem;

bool is_file(const fs::path& path) {
  std::error_code failed;
  return fs::is_regular_file(path, failed);
}

/// Source of an export: the model and its weights.
struct ExportSource {
  ModelConfig model;
  LoraConfig lora;
  std::shared_ptr<ParameterSource> weights;
  std::string tokenizer;                               // folder of the tokenizer, or one of its files; empty: unknown
  std::shared_ptr<ParameterSource> adapter = weights;  // these weights, or files of its own
};

Config config_of_attributes(const std::map<std::string, std::string>& attributes, const std::string& checkpoint,
                            const std::string& model_path) {
  constexpr std::string_view kPrefix = "config.";
  std::string text = "train.sequence = 1\n";
  for (const auto& [name, value] : attributes) {
    const std::string key = name.substr(std::min(kPrefix.size(), name.size()));
    const bool is_of_model = key.starts_with("model.") || (key.starts_with("lora.") && key != "lora.path");
    if (name.starts_with(kPrefix) && (is_of_model || key == "data.tokenizer"))
      text +=
          fmt::format("{} = {}\n", key, key == "model.path" && !model_path.empty() ? toml_string(model_path) : value);
  }
  return parse_config(text + "data.kind = \"tokens\"\n", checkpoint, {}, ConfigFor::model);
}

/// Tokenizer of the data, as far as that is known.
std::string tokenizer_of(const Config& config) {
  return config.data.tokenizer.empty() ? config.model.path : config.data.tokenizer;
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
  source.adapter = std::make_shared<ImportedWeights>(open_adapter(model, lora), trained_parameters(model, lora));
  return source;
}

/// The weights of a model's folder as a run has them that holds matrices of blocks in a format; null: in none.
std::shared_ptr<ParameterSource> as_trained(const ExportSource& folder, const FrozenFormat* format) {
  if (format == nullptr) return folder.weights;
  const auto model = family_named(folder.model.family).make(folder.model);
  std::set<const Parameter*> matrices;
  add_matrices_of_blocks(*model, matrices);
  std::set<std::string> names;
  for (const Parameter* parameter : matrices) names.insert(parameter->name());
  return std::make_shared<RoundedWeights>(folder.weights, format, std::move(names));
}

bool is_model_path(const std::string& override) { return overridden_key(override) == "model.path"; }

/// The model's folder that an override names; empty: none does.
std::string given_model_path(const ExportJob& job) {
  std::vector<std::string> given;
  std::copy_if(job.overrides.begin(), job.overrides.end(), std::back_inserter(given), is_model_path);
  return given.empty() ? "" : parse_config("", "command line", given, ConfigFor::model).model.path;
}

/// `saved`, and what it leaves out from the model's folder, if that is wanted. `path`: of the folder, which becomes the
/// one that there is; `attributes`: what was saved beside the weights; `place`: where.
std::shared_ptr<ParameterSource> with_frozen(const std::shared_ptr<ParameterSource>& saved,
                                             const std::map<std::string, std::string>& attributes,
                                             const std::string& place, std::string& path) {
  const auto frozen = FrozenWeights::in(attributes);
  if (!frozen) return saved;
  path = frozen->check(path, place).folder;
  return std::make_shared<BothWeights>(saved, as_trained(of_folder(path), frozen_format_in(attributes)));
}

ExportSource of_checkpoint(const std::string& folder, const ExportJob& job) {
  const auto saved = std::make_shared<CheckpointSource>(folder, job.is_average);
  std::string path = given_model_path(job);
  std::shared_ptr<ParameterSource> weights = saved;
  if (!job.is_adapter) weights = with_frozen(saved, saved->attributes(), folder, path);
  Config config = config_of_attributes(saved->attributes(), folder, path);
  std::string tokenizer = tokenizer_of(config);
  if (const fs::path run = fs::absolute(folder + "/../..").lexically_normal(); is_file(run / "config.toml"))
    tokenizer = tokenizer_of(load_config((run / "config.toml").string()));  // its names are absolute
  return {std::move(config.model), std::move(config.lora), std::move(weights), std::move(tokenizer)};
}

/// Final weights of a run of this configuration.
ExportSource of_weights(Config config, const std::string& weights, bool is_adapter) {
  std::shared_ptr<ParameterSource> source = std::make_shared<SavedWeights>(weights);
  if (!is_adapter) source = with_frozen(source, attributes_of_weights(weights), weights, config.model.path);
  return {config.model, config.lora, std::move(source), tokenizer_of(config)};
}

/// The final weights of a run, or its newest checkpoint where that is newer, or has the average.
ExportSource of_run(const std::string& folder, const ExportJob& job) {
  const std::string root = (fs::path(folder) / "checkpoints").string();
  const auto steps = list_checkpoints(root);
  const std::string newest = steps.empty() ? "" : step_folder(root, steps.back());
  if (!job.is_average && has_final_weights(folder, newest)) {
    Config config = load_config((fs::path(folder) / "config.toml").string());
    if (const std::string path = given_model_path(job); !path.empty()) config.model.path = path;
    return of_weights(std::move(config), (fs::path(folder) / kFinalWeights).string(), job.is_adapter);
  }
  if (steps.empty())
    throw Error(ExitCode::checkpoint,
                job.is_average ? "there is no checkpoint, which would have the average of the weights"
                               : "there are neither weights nor a checkpoint",
                folder, "name a run that has saved some");
  return of_checkpoint(newest, job);
}

/// Says what has no effect.
void check_set(const char* kind, const std::vector<std::string>& overrides) {
  const std::string unread = unread_keys(key_use(kind), overrides);
  if (!unread.empty()) print_warning(unread);
}

ExportSource model_folder(const std::string& folder, bool is_average, const LoraConfig& lora) {
  if (is_average)
    throw Error(ExitCode::usage, "--average of a model's folder, which has the weights alone", folder,
                "leave --average out, or name a run or a checkpoint");
  return of_folder(folder, lora);
}

ExportSource of_configuration(const ExportJob& job) {
  const std::string& from = job.from;
  const Config config = load_config(from, job.overrides, ConfigFor::model);
  check_set("export of a configuration", job.overrides);
  const std::string run = run_dir_asked_for(config, from, "latest");
  if (!run.empty() && RunMark::find(run)) return of_run(run, job);
  if (!config.model.path.empty()) return model_folder(config.model.path, job.is_average, config.lora);
  throw Error(ExitCode::checkpoint, "this configuration names no run and no model", from,
              "name a run, a checkpoint or a model's folder");
}

ExportSource find_source(const ExportJob& job) {
  std::error_code failed;
  const fs::path path(job.from);
  if (!fs::exists(path, failed) && is_like_hub_name(job.from))
    throw Error(ExitCode::checkpoint, "there is no such folder", job.from, kFetchModel);
  if (!fs::is_directory(path, failed)) return of_configuration(job);
  if (!is_file(path / "config.toml") && fs::exists(path / HfConfig::kFile, failed)) {
    const Config config = config_of({.folder = job.from}, job.overrides, {});
    check_set("export of a model's folder", job.overrides);
    return model_folder(job.from, job.is_average, config.lora);
  }
  std::vector<std::string> others;
  std::remove_copy_if(job.overrides.begin(), job.overrides.end(), std::back_inserter(others), is_model_path);
  check_set("export of a run or a checkpoint", others);
  return is_file(path / "config.toml") ? of_run(job.from, job) : of_checkpoint(job.from, job);
}

/// Dtype of a folder's weights; none of a name that GGUF files alone have.
std::optional<FileDType> find_folder_dtype(const std::string& name) {
  for (const auto& [known, dtype] :
       {std::pair("f32", FileDType::f32), std::pair("bf16", FileDType::bf16), std::pair("f16", FileDType::f16)})
    if (name == known) return dtype;
  return std::nullopt;
}

bool is_gguf(const std::string& path) {
  std::string ending = path.substr(path.size() - std::min<std::size_t>(path.size(), 5));
  for (char& c : ending) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return ending == ".gguf";
}

/// Rule of what may be replaced: what the run has exported there before.
OutputRule rule_of(const RunMark* run) {
  if (run == nullptr) return {};
  return {.is_own = [run](const std::string& path) { return run->is_own_export(path); }};
}

/// Before anything is written.
void check_target(const std::string& to, const std::string& dtype, const RunMark* run) {
  if (!dtype.empty() && !find_folder_dtype(dtype) && !is_gguf(to))
    throw Error(ExitCode::config, dtype + " is for GGUF files alone", to,
                "name a file that ends with .gguf, or another dtype");
  std::error_code failed;
  fs::path parent = fs::absolute(to).lexically_normal().parent_path();
  while (!fs::exists(parent, failed) && parent.has_relative_path()) parent = parent.parent_path();
  if (!fs::is_directory(parent, failed) || ::access(parent.c_str(), W_OK | X_OK) != 0)
    throw Error(ExitCode::cannot_create, "the folder of the export cannot be made, or not be written to",
                parent.string(), "choose another place");
  if (is_gguf(to)) return check_output(to, rule_of(run));
  const fs::file_status status = fs::symlink_status(to, failed);
  const bool is_free = !fs::exists(status) || (fs::is_directory(status) && fs::is_empty(to, failed));
  if (!is_free && (run == nullptr || !run->is_own_export(to)))
    throw Error(ExitCode::cannot_create, "there is something where the model would be written", to,
                "choose a new name");
}

void check_gguf_adapter(const ModelConfig& model, const LoraConfig& lora, const std::string& to) {
  if (!lora.modules_to_save.empty())
    throw Error(ExitCode::model, "a GGUF file of an adapter holds no modules that were trained whole", to,
                "export the merged model: leave out --adapter");
  const std::vector<LoraTarget> targets = lora_targets(model, lora);
  if (std::any_of(targets.begin(), targets.end(),
                  [](const LoraTarget& target) { return target.is_embedding || target.experts > 0; }))
    throw Error(ExitCode::model, "a GGUF file of an adapter holds none of an embedding or of experts", to,
                "export the merged model: leave out --adapter");
  if (lora.dora)
    throw Error(ExitCode::model, "a GGUF file of an adapter holds no magnitudes (lora.dora)", to,
                "export the merged model: leave out --adapter");
}

/// Listed before it has its name: whatever is killed later, the run knows its own.
std::function<void()> listing(const ExportJob& job, const std::string& written) {
  return [&job, &written] {
    if (job.run != nullptr) job.run->exports(job.to, fingerprint_of(written));
  };
}

void write_gguf(ParameterSource& weights, const ExportSource& source, const ExportJob& job) {
  const Family& family = family_named(source.model.family);
  const TensorMap map = family.tensor_map(source.model);
  const std::optional<GgufFileType> type = find_gguf_type(job.dtype);
  ZS_CHECK(type.has_value(), "{}", job.dtype);
  OutputFile file(job.to, rule_of(job.run));
  for (const std::string& line : export_gguf(weights, {map, family.gguf, source.model, source.tokenizer}, file, *type))
    print_warning(line);
  file.commit(listing(job, file.temporary()));
}

OutputFolder open_folder(const ExportJob& job) { return OutputFolder(job.to, rule_of(job.run).is_own); }

void write_folder(ParameterSource& weights, const ExportSource& source, const ExportJob& job) {
  OutputFolder folder = open_folder(job);
  const TensorMap map = family_named(source.model.family).tensor_map(source.model);
  export_safetensors(weights, map, folder.writing(), {find_folder_dtype(job.dtype).value(), job.shard_mib << 20});
  for (const std::string& line : copy_companions(source.model.path, source.tokenizer, folder.writing()))
    print_warning(line);
  write_file_atomically((fs::path(folder.writing()) / HfConfig::kFile).string(),
                        exported_config(source.model, source.tokenizer, job.dtype));
  folder.commit(listing(job, folder.writing()));
}

void write_gguf_adapter(const ExportSource& source, const ExportJob& job) {
  check_gguf_adapter(source.model, source.lora, job.to);
  const Family& family = family_named(source.model.family);
  const TensorMap map = family.tensor_map(source.model);
  std::vector<GgufFactors> factors;
  for (const LoraTarget& target : lora_targets(source.model, source.lora))
    factors.push_back(
        {target.parameter, target.row, target.rows, target.columns, target.rank, target.a(), target.b(), target.scale});
  OutputFile file(job.to, rule_of(job.run));
  export_gguf_adapter(*trained_part(source.adapter, source.model, source.lora),
                      {map, family.gguf, source.model, source.tokenizer}, factors, source.lora.alpha, file);
  file.commit(listing(job, file.temporary()));
}

void write_adapter(const ExportSource& source, const ExportJob& job) {
  if (!source.lora.is_on())
    throw Error(ExitCode::config, "the model has no adapter", job.to,
                "name a run with lora.rank, or leave --adapter out");
  if (is_gguf(job.to)) return write_gguf_adapter(source, job);
  OutputFolder folder = open_folder(job);
  export_adapter(*trained_part(source.adapter, source.model, source.lora), source.model, source.lora, folder.writing());
  folder.commit(listing(job, folder.writing()));
}

void write_model(ExportSource source, const ExportJob& job) {
  if (job.is_adapter && !job.merges.empty())
    throw Error(ExitCode::usage, "--adapter writes one adapter, and --merge adds some to the model", job.to,
                "leave one of the two out");
  if (job.is_adapter) return write_adapter(source, job);
  std::shared_ptr<ParameterSource> weights = source.weights;
  if (source.lora.is_on()) {
    weights = merged(source.weights, source.adapter, source.model, source.lora);
    if (unties_head(source.model, source.lora)) source.model.tied_head = false;
  }
  weights = with_merged(std::move(weights), source.model, job.merges);
  is_gguf(job.to) ? write_gguf(*weights, source, job) : write_folder(*weights, source, job);
  if (!source.tokenizer.empty() && !has_tokenizer(source.tokenizer))
    print_warning(fmt::format("exported without a tokenizer: there is none in {}", source.tokenizer));
}

/// Source of a run that has ended.
}  // namespace

void export_model(const ExportJob& job) {
  if (job.is_adapter && !job.dtype.empty() && job.dtype != "f32")
    throw Error(ExitCode::usage, "an adapter is written in f32", job.to, "leave out --adapter, or --dtype");
  check_target(job.to, job.dtype, nullptr);
  const ExportSource source = find_source(job);
  ExportJob own = job;
  if (own.dtype.empty())
    own.dtype = is_file(fs::path(source.model.path) / HfConfig::kFile) ? folder_dtype(source.model.path) : "f32";
  write_model(source, own);
}

void export_run(const Config& config, const std::string& weights, RunMark& run) {
  write_model(of_weights(config, weights, false), {.to = config.run.export_to,
                                                   .from = "",
                                                   .dtype = config.run.export_dtype,
                                                   .shard_mib = config.run.export_shard_mib,
                                                   .run = &run});
}

void export_run_adapter(const Config& config, const std::string& weights, RunMark& run) {
  write_adapter(of_weights(config, weights, true), {.to = config.lora.export_to, .from = "", .run = &run});
}

void check_export(const Config& config, const RunMark* run, const std::string& run_dir) {
  const std::string &model = config.run.export_to, &adapter = config.lora.export_to;
  const auto check_apart = [](const std::string& one, const std::string& other, const char* what) {
    std::error_code failed;
    const auto whole = [&](const std::string& path) { return fs::weakly_canonical(path + "/.", failed); };
    if (!one.empty() && !other.empty() && whole(one) == whole(other))
      throw Error(ExitCode::config, fmt::format("an export has the place of {}", what), one, "choose another name");
  };
  check_apart(model, adapter, "the other one");
  for (const std::string& to : {model, adapter}) check_apart(to, run_dir, "the run itself");
  if (!model.empty()) check_target(model, config.run.export_dtype, run);
  if (is_gguf(model)) check_gguf(config.model, tokenizer_of(config));
  if (!adapter.empty()) check_target(adapter, "f32", run);
  if (is_gguf(adapter)) check_gguf_adapter(config.model, config.lora, adapter);
  if (is_gguf(adapter)) check_gguf_names(config.model);
}

}  // namespace zs
