#include "model/train/run_dir/saved_model.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string_view>

#include "model/families/hf_config.h"
#include "model/train/config/config_schema.h"
#include "model/train/config/site_defaults.h"
#include "model/train/config/toml_text.h"
#include "model/train/run_dir/frozen_weights.h"
#include "runtime/base/not_fetched.h"
#include "runtime/base/parse_integer.h"
#include "runtime/shard/checkpoint/checkpoint_folder.h"

namespace zs {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTables[] = {"model.", "lora.", "data.", "train.", "shard.", "precision.", "cuda."};
/// Keys of these tables that concern steps, or the machine that took them.
constexpr std::string_view kOfTraining[] = {
    "train.time_limit",   "cuda.graph", "cuda.share_gpu", "cuda.transport", "cuda.libraries",    "cuda.attention",
    "cuda.tune_products", "model.path", "lora.path",      "lora.export",    "precision.quantize"};

bool is_on_disk(const fs::path& path) {
  std::error_code failed;
  return fs::exists(path, failed);
}

fs::file_time_type written(const fs::path& path) {
  std::error_code failed;
  const auto time = fs::last_write_time(path, failed);
  return failed ? fs::file_time_type::min() : time;
}

Error nothing_saved(const std::string& what, const std::string& where) {
  std::error_code failed;
  return {ExitCode::checkpoint, what, where,
          is_like_hub_name(where) && !fs::exists(where, failed)
              ? kFetchModel
              : "name the folder of a checkpoint, of a run that has one or has ended, or of a model"};
}

/// RUN of RUN/checkpoints/NAME, where a run has left its configuration; else empty.
std::string run_around(const fs::path& checkpoint) {
  const fs::path root = fs::absolute(checkpoint).lexically_normal().parent_path();
  return root.filename() == "checkpoints" && is_on_disk(root.parent_path() / "config.toml")
             ? root.parent_path().string()
             : std::string();
}

bool is_kept(std::string_view key) {
  const bool is_in_table =
      std::any_of(std::begin(kTables), std::end(kTables), [&](auto table) { return key.starts_with(table); });
  return key == "name" ||
         (is_in_table && std::find(std::begin(kOfTraining), std::end(kOfTraining), key) == std::end(kOfTraining));
}

/// True for a key of a table in which keys decide others, if one of them is overridden: then none of those that were
/// saved counts.
bool is_replaced(std::string_view key, const std::vector<std::string>& overrides) {
  for (const std::string_view table : {"shard.", "precision."}) {
    const auto names_one = [&](const std::string& text) {
      return text.compare(std::min(text.find_first_not_of(' '), text.size()), table.size(), table) == 0;
    };
    if (key.starts_with(table)) return std::any_of(overrides.begin(), overrides.end(), names_one);
  }
  return false;
}

/// Keys of a configuration, and their values as TOML.
using SavedKeys = std::map<std::string, std::string>;

SavedKeys keys_of_checkpoint(const std::string& checkpoint) {
  constexpr std::string_view kPrefix = "config.";
  SavedKeys keys;
  const CheckpointReader reader(checkpoint);
  for (const auto& [attribute, value] : reader.manifest().attributes) {
    const std::string key = attribute.substr(std::min(kPrefix.size(), attribute.size()));
    if (!attribute.starts_with(kPrefix) || !is_kept(key)) continue;
    if (find_config_key(key) == nullptr)
      throw Error(ExitCode::checkpoint,
                  fmt::format("the checkpoint has a key that this program does not know: {}", key), checkpoint,
                  "use the version that has saved it");
    keys[key] = value;
  }
  if (keys.empty())
    throw Error(ExitCode::checkpoint, "the checkpoint does not say of which model it is", checkpoint,
                "name one that train has saved");
  return keys;
}

/// Keys of the config.toml that the run has left.
SavedKeys keys_of_run(const std::string& run_dir) {
  Config config = load_config(run_dir + "/config.toml");
  SavedKeys keys;
  for (const ConfigKey& key : config_keys())
    if (is_kept(key.name)) keys[std::string(key.name)] = toml_value(key.slot(config));
  return keys;
}

std::string saved_config(const SavedModel& model, const std::vector<std::string>& overrides) {
  std::string text;
  for (const auto& [key, value] :
       model.checkpoint.empty() ? keys_of_run(model.run_dir) : keys_of_checkpoint(model.checkpoint))
    if (!is_replaced(key, overrides)) text += fmt::format("{} = {}\n", key, value);
  return text;
}

/// The last train.micro_batch among overrides, of which the global batch has to be a multiple though no step is taken;
/// empty: none that is good.
std::string given_micro_batch(const std::vector<std::string>& overrides) {
  std::string rows;
  for (const std::string& text : overrides) {
    const std::size_t equals = std::min(text.find('='), text.size());
    const auto trimmed = [](const std::string& part) {
      const std::size_t begin = part.find_first_not_of(' '), end = part.find_last_not_of(' ');
      return begin == part.npos ? std::string() : part.substr(begin, end - begin + 1);
    };
    if (trimmed(text.substr(0, equals)) != "train.micro_batch" || equals == text.size()) continue;
    rows = trimmed(text.substr(equals + 1));
    if (const auto number = parse_integer<std::int64_t>(rows); !number || *number < 1) rows.clear();
  }
  return rows;
}

/// Takes the data from the run's own configuration, if it can be read: the names there are absolute. Not what is
/// overridden.
void take_data(Config& config, const std::string& run_dir) {
  const auto is_overridden = [&](const char* key) {
    const auto given = config.given.keys.find(key);
    return given != config.given.keys.end() && given->second.starts_with("--set");
  };
  try {
    const Config own = load_config(run_dir + "/config.toml");
    if (!is_overridden("data.tokenizer")) config.data.tokenizer = own.data.tokenizer;
    if (is_overridden("data.train") || is_overridden("data.validation")) return;
    config.data.train = own.data.train;
    config.data.validation = own.data.validation;
  } catch (const Error&) {  // then the checkpoint's names have to do
  }
}

bool is_set(const std::vector<std::string>& overrides, std::string_view key) {
  return std::any_of(overrides.begin(), overrides.end(),
                     [&](const std::string& text) { return overridden_key(text) == key; });
}

/// A configuration for a model that nobody has trained here.
std::string folder_config(const std::string& folder, const std::vector<std::string>& overrides,
                          const std::vector<std::string>& files) {
  constexpr std::int64_t kLongest = 1024;
  std::string text = fmt::format("model.path = {}\n", toml_string(folder));
  const bool has_tokenizer =
      is_on_disk(fs::path(folder) / "tokenizer.json") || is_on_disk(fs::path(folder) / "tokenizer.model");
  const bool are_ids = !files.empty() &&
                       std::all_of(files.begin(), files.end(), [](const auto& file) { return file.ends_with(".bin"); });
  if (!is_set(overrides, "data.kind"))
    text += fmt::format("data.kind = \"{}\"\n", has_tokenizer && !are_ids ? "text" : "tokens");
  if (has_tokenizer && !is_set(overrides, "data.tokenizer"))
    text += fmt::format("data.tokenizer = {}\n", toml_string(folder));
  const std::int64_t context = parse_config(text, folder, overrides, ConfigFor::model).model.context;
  if (!is_set(overrides, "train.sequence")) text += fmt::format("train.sequence = {}\n", std::min(context, kLongest));
  return text;
}

}  // namespace

bool has_final_weights(const std::string& run_dir, const std::string& checkpoint) {
  const fs::path weights = fs::path(run_dir) / kFinalWeights;
  return is_on_disk(weights) &&
         (checkpoint.empty() || written(weights) >= written(fs::path(checkpoint) / kManifestFile));
}

SavedModel find_saved_model(const std::string& path) {
  fs::path folder = fs::path(path).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  std::error_code failed;
  if (!fs::is_directory(folder, failed))
    throw nothing_saved(is_on_disk(folder) ? "this is no folder" : "there is no such folder", path);
  if (is_on_disk(folder / kManifestFile) || folder.filename().string().starts_with("step-"))
    return {.checkpoint = folder.string(), .run_dir = run_around(folder)};
  if (is_on_disk(folder / HfConfig::kFile)) return {.folder = fs::absolute(folder).string()};
  const std::string root = (folder / "checkpoints").string(),
                    run_dir = is_on_disk(folder / "config.toml") ? folder.string() : "";
  const auto steps = list_checkpoints(root);
  const std::string newest = steps.empty() ? "" : step_folder(root, steps.back());
  if (!run_dir.empty() && has_final_weights(run_dir, newest))
    return {.weights = (folder / kFinalWeights).string(), .run_dir = run_dir};
  if (steps.empty()) throw nothing_saved("there is no checkpoint", path);
  return {.checkpoint = newest, .run_dir = run_dir};
}

Config config_of(const SavedModel& model, const std::vector<std::string>& overrides,
                 const std::vector<std::string>& files) {
  std::vector<std::string> all = overrides;
  if (const std::string rows = given_micro_batch(overrides); !rows.empty()) all.push_back("train.global_batch=" + rows);
  if (!model.folder.empty()) {
    const std::string text = folder_config(model.folder, all, files);
    return parse_config(text, model.folder, all, ConfigFor::model, site_defaults());
  }
  Config config =
      parse_config(saved_config(model, overrides), model.checkpoint.empty() ? model.run_dir : model.checkpoint, all);
  if (!model.run_dir.empty()) take_data(config, model.run_dir);
  const auto attributes = model.checkpoint.empty() ? attributes_of_weights(model.weights)
                                                   : CheckpointReader(model.checkpoint).manifest().attributes;
  if (const FrozenFormat* format = frozen_format_in(attributes)) config.precision.quantize = format->name;
  return config;
}

}  // namespace zs
