#include "model/train/cli/tune_file.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "model/data/data_files.h"
#include "model/json/strict_json.h"
#include "model/train/config/config_dataset.h"
#include "model/train/config/config_schema.h"
#include "model/train/config/expand_path.h"
#include "model/train/config/site_defaults.h"
#include "runtime/base/file.h"

namespace zs {
namespace {

namespace fs = std::filesystem;

std::string toml(std::string text) { return toml_value(&text); }
std::string toml(std::vector<std::string> texts) { return toml_value(&texts); }

/// Names of a prompt and of what follows it, in data sets that are public.
constexpr std::array<std::pair<const char*, const char*>, 5> kPrompted = {{{"prompt", "completion"},
                                                                           {"prompt", "response"},
                                                                           {"instruction", "output"},
                                                                           {"question", "answer"},
                                                                           {"input", "output"}}};

/// The first line that is not empty, as far as it is not longer than any sensible document.
std::string first_line(const std::string& path) {
  constexpr std::size_t kBytes = std::size_t{16} << 20;
  const File file = File::open(path, O_RDONLY);
  std::string text(std::min(kBytes, static_cast<std::size_t>(std::max<std::int64_t>(file.bytes(), 0))), '\0');
  text.resize(file.read_at(0, text.data(), text.size()).bytes);
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  return begin == text.npos ? "" : text.substr(begin, text.find('\n', begin) - begin);
}

/// Keys that a line of JSON tells of its file.
std::vector<std::pair<std::string, std::string>> json_keys(const std::string& line, const std::string& path) {
  nlohmann::json object;
  if (read_json_tree(line, object) || !object.is_object())
    return {{"data.format", toml("jsonl")}};  // training says what is wrong with it
  const auto has = [&](const char* field) { return object.contains(field); };
  if (has("messages")) return {{"data.format", toml("chat")}};
  if (has("chosen") && has("rejected")) return {{"data.format", toml("preference")}, {"train.micro_batch", "2"}};
  for (const auto& [prompt, answer] : kPrompted)
    if (has(prompt) && has(answer))
      return {{"data.format", toml("jsonl")}, {"data.prompt_field", toml(prompt)}, {"data.field", toml(answer)}};
  for (const char* const field : {"text", "content"})
    if (has(field)) return {{"data.format", toml("jsonl")}, {"data.field", toml(field)}};
  std::string fields;
  for (const auto& [name, value] : object.items()) fields += (fields.empty() ? "" : ", ") + name;
  throw Error(ExitCode::dataset, fmt::format("no field of the first line is known to be a text: {}", fields), path,
              "say which: --set data.format=jsonl --set data.field=NAME, and data.prompt_field");
}

/// Keys that the data's first file asks for.
std::vector<std::pair<std::string, std::string>> data_keys(const std::vector<std::string>& data) {
  const std::vector<std::string> files = find_data_files(data, {""}, "");
  const std::string& path = files.front();
  if (path.ends_with(".bin")) return {{"data.kind", toml("tokens")}};
  const std::string line = first_line(path);
  if (line.starts_with('{') || line.starts_with('[') || path.ends_with(".jsonl")) return json_keys(line, path);
  return {};
}

/// True if `overrides` give one of these keys.
bool gives(const std::vector<std::string>& overrides, std::initializer_list<const char*> keys) {
  return std::any_of(overrides.begin(), overrides.end(), [&](const std::string& each) {
    return std::find(keys.begin(), keys.end(), overridden_key(each)) != keys.end();
  });
}

/// A path that means the same from every folder. What is not there stays as it was written, for the message.
std::string settled(const std::string& path) {
  const fs::path expanded = expand_path(path);
  std::error_code failed;
  return fs::exists(expanded, failed) ? fs::absolute(expanded).lexically_normal().string() : path;
}

}  // namespace

std::string default_tune_file(const std::string& model) {
  const fs::path folder = fs::absolute(expand_path(model) + "/.").lexically_normal();
  return fmt::format("tune-{}.toml", folder.parent_path().filename().string());
}

TuneFile::TuneFile(const TuneRequest& request, std::string path) : path_(std::move(path)) {
  check_overrides(request.overrides);
  std::vector<std::string> data;
  for (const std::string& each : request.data) {
    const std::string expanded = expand_path(each);
    data.push_back(fs::path(expanded).is_absolute() ? expanded : (fs::current_path() / expanded).string());
  }
  keys_ = {{"model.path", toml(settled(request.model))}, {"data.train", toml(data)}};
  if (!gives(request.overrides, {"data.format", "data.kind"}))
    for (const auto& key : data_keys(data)) keys_.push_back(key);
  keys_.emplace_back("precision.param", toml("bf16"));
  if (!gives(request.overrides, {"train.steps"})) keys_.emplace_back("train.epochs", "1");
  keys_.emplace_back("train.global_batch", "16");
  if (request.rank > 0) {
    // Experts have no adapters yet.
    const Config model = parse_config(text_of({keys_.front()}), path_, {}, ConfigFor::model);
    const std::string targets = model.model.experts > 0
                                    ? toml(std::vector<std::string>{"q_proj", "k_proj", "v_proj", "o_proj"})
                                    : toml("all-linear");
    for (const auto& [key, value] :
         {std::pair("lora.rank", std::to_string(request.rank)),
          std::pair("lora.alpha", std::to_string(2 * request.rank)), std::pair("lora.targets", targets)})
      keys_.emplace_back(key, value);
  }
  keys_ = changed(keys_, request.overrides);
  constexpr std::int64_t kWindow = 1024;
  const Config config = parse_config(text_of(keys_), path_, {}, ConfigFor::training, site_defaults());
  if (config.data.format == "stream" && config.train.sequence > kWindow &&
      !gives(request.overrides, {"train.sequence"}))
    keys_.emplace_back("train.sequence", std::to_string(kWindow));
}

std::string TuneFile::text(const std::vector<std::string>& changes) const { return text_of(changed(keys_, changes)); }

std::string TuneFile::text_of(const Keys& keys) {
  std::string text;
  for (const auto& [key, value] : keys) text += fmt::format("{} = {}\n", key, value);
  return text;
}

TuneFile::Keys TuneFile::changed(Keys keys, const std::vector<std::string>& changes) const {
  if (changes.empty()) return keys;
  Config config = parse_config(text_of(keys), path_, changes, ConfigFor::training, site_defaults());
  config = with_absolute_paths(std::move(config), path_, "");  // the file may be used from another folder
  for (const std::string& change : changes) {
    const std::string name = overridden_key(change);
    const std::string value = toml_value(find_config_key(name)->slot(config));
    const auto known = std::find_if(keys.begin(), keys.end(), [&](const auto& key) { return key.first == name; });
    if (known == keys.end())
      keys.emplace_back(name, value);
    else
      known->second = value;
  }
  return keys;
}

}  // namespace zs
