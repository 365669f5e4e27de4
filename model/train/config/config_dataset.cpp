#include "model/train/config/config_dataset.h"

#include <algorithm>
#include <filesystem>

#include "model/data/data_files.h"
#include "runtime/base/check.h"

namespace zs {
namespace {

namespace fs = std::filesystem;

/// The pattern of a path that would else begin a variable: `[$]` in place of a `$` that a part of it begins with.
std::string without_variables(std::string path) {
  for (std::size_t at = path.find("/$"); at != std::string::npos; at = path.find("/$", at + 1))
    path.replace(at + 1, 1, "[$]");
  return path;
}

DocumentOptions document_options(const Config::Data& data) {
  const auto format_of = [](const std::string& name) {
    if (name == "lines") return DocumentFormat::lines;
    if (name == "files") return DocumentFormat::files;
    if (name == "chat") return DocumentFormat::chat;
    if (name == "preference") return DocumentFormat::preference;
    return name == "jsonl" ? DocumentFormat::jsonl : DocumentFormat::stream;
  };
  const auto overlong_of = [](const std::string& name) {
    if (name == "truncate") return Overlong::truncate;
    return name == "split" ? Overlong::split : Overlong::refuse;
  };
  return {.format = format_of(data.format),
          .field = data.field,
          .prompt_field = data.prompt_field,
          .overlong = overlong_of(data.overlong)};
}

/// The name as it is in the first of the folders that has it; unchanged where it is found in none any more.
std::string found_name(const std::string& name, const DatasetOptions& options) {
  const std::string suffix = folder_suffix(options);
  for (const std::string& folder : options.folders) {
    std::error_code failed;
    const std::string whole =
        std::filesystem::absolute(std::filesystem::path(folder) / name, failed).lexically_normal().string();
    try {
      if (!failed && !find_data_files({whole}, {}, suffix).empty()) return without_variables(whole);
    } catch (const Error&) {  // not there
    }
  }
  return name;
}

/// From the folder where the program was started.
void make_absolute(std::string& path) {
  std::error_code failed;
  if (const fs::path whole = fs::absolute(path, failed); !path.empty() && !failed)
    path = whole.lexically_normal().string();
}

}  // namespace

SpecialTokens special_tokens(const Config& config) {
  const std::string& special = config.data.special_tokens;
  if (special == "none") return SpecialTokens::none;
  return special == "always" ? SpecialTokens::always : SpecialTokens::automatic;
}

DatasetOptions dataset_options(const Config& config, const std::string& config_path, const std::string& build_folder) {
  DatasetOptions options;
  options.kind = config.data.kind == "text" ? DataKind::text : DataKind::tokens;
  options.token_bytes = config.data.token_bytes;
  options.documents = document_options(config.data);
  options.train = config.data.train;
  options.weights = config.data.weights;
  options.validation = config.data.validation;
  options.validation_fraction = config.data.validation_fraction;
  const std::string beside = std::filesystem::path(config_path).parent_path().string();
  for (const std::string& folder : {std::string(), beside, build_folder})
    if (folder.empty() ? options.folders.empty() : folder != options.folders.back()) options.folders.push_back(folder);
  options.sequence = config.train.sequence;
  options.most_sequence = std::min(config.model.context, kMostDefaultSequence);
  options.vocab = config.model.vocab;
  options.has_fixed_vocab = !config.model.path.empty();
  options.special = special_tokens(config);
  const bool is_last = config.data.train_on == "last" || config.data.format == "preference";
  options.train_on = is_last ? TrainOn::last : config.data.train_on == "all" ? TrainOn::all : TrainOn::assistant;
  options.seed = static_cast<std::uint64_t>(config.train.seed);
  return options;
}

void open_text(const Config& config, DatasetOptions& options) {
  if (config.data.tokenizer.empty()) return;
  options.tokenizer = open_tokenizer(config.data.tokenizer);
  if (config.data.format == "chat") options.chat = open_chat_template(config.data.tokenizer, config.data.chat_template);
  if (config.data.format != "preference") return;
  try {
    options.chat = open_chat_template(config.data.tokenizer, config.data.chat_template);
  } catch (const Error&) {  // pairs of texts need none; messages say so
    if (!config.data.chat_template.empty()) throw;
  }
}

std::vector<std::string> task_files(const Config& config, const std::string& config_path,
                                    const std::string& build_folder) {
  const std::vector<std::string> folders = dataset_options(config, config_path, build_folder).folders;
  std::vector<std::string> files = config.run.evaluate;
  for (std::string& name : files) {
    if (fs::path(name).is_absolute()) continue;
    for (const std::string& folder : folders) {
      std::error_code failed;
      const fs::path whole = fs::absolute(fs::path(folder) / name, failed).lexically_normal();
      if (failed || !fs::exists(whole, failed)) continue;
      name = whole.string();
      break;
    }
  }
  return files;
}

Config with_absolute_paths(Config config, const std::string& config_path, const std::string& build_folder) {
  const DatasetOptions options = dataset_options(config, config_path, build_folder);
  config.run.evaluate = task_files(config, config_path, build_folder);
  for (std::vector<std::string>* names : {&config.data.train, &config.data.validation}) {
    for (std::string& name : *names) {
      if (!std::filesystem::path(name).is_absolute()) name = found_name(name, options);
    }
  }
  for (std::string* path :
       {&config.data.tokenizer, &config.data.chat_template, &config.run.export_to, &config.lora.export_to})
    make_absolute(*path);
  for (std::string* place : {&config.offload.weights, &config.offload.moments}) {
    std::string folder = Config::Offload::disk_of(*place);
    if (folder.empty()) continue;
    make_absolute(folder);
    *place = "disk:" + folder;
  }
  return config;
}

}  // namespace zs
