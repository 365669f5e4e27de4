#include "model/train/run_dir/export_config.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "model/families/family.h"
#include "model/families/hf_config.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/tokenizer_config.h"

namespace zs {
namespace {

namespace fs = std::filesystem;

bool has_config(const std::string& folder) {
  std::error_code failed;
  return fs::is_regular_file(fs::path(folder) / HfConfig::kFile, failed);
}

/// The ids that begin and end a text: what transformers would take for them where config.json is silent is another
/// model's. Those of the folder that the model came from, else the tokenizer's, else null.
void set_special_ids(nlohmann::ordered_json& document, const std::string& folder, const std::string& tokenizer) {
  document["bos_token_id"] = document["eos_token_id"] = nullptr;
  if (has_tokenizer(tokenizer)) {
    const auto opened = open_tokenizer(tokenizer);
    if (const auto id = opened->begin_of_text()) document["bos_token_id"] = *id;
    if (const auto id = opened->end_of_text()) document["eos_token_id"] = *id;
  }
  if (!has_config(folder)) return;
  const HfConfig own = HfConfig::of_folder(folder);
  for (const char* const key : {"bos_token_id", "eos_token_id", "pad_token_id"})
    if (own.document().contains(key)) document[key] = nlohmann::ordered_json::parse(own.document()[key].dump());
}

}  // namespace

bool has_tokenizer(const std::string& tokenizer) {
  if (tokenizer.empty()) return false;
  const TokenizerFiles files = find_tokenizer_files(tokenizer);
  return !files.json.empty() || !files.pieces.empty();
}

std::string exported_config(const ModelConfig& model, const std::string& tokenizer, const std::string& dtype) {
  const Family& family = family_named(model.family);
  nlohmann::ordered_json document = family.to_config(model);
  set_special_ids(document, model.path, tokenizer);
  if (has_config(model.path)) {
    const HfConfig own = HfConfig::of_folder(model.path);
    ModelConfig theirs = family.from_config(own);
    family.derive(theirs);
    theirs.path = model.path;
    theirs.preset = model.preset;
    if (theirs == model) document = own.document();
    document.erase("quantization_config");  // weights are written in full
  }
  const char* const name = dtype == "f32" ? "float32" : dtype == "f16" ? "float16" : "bfloat16";
  if (document.contains("torch_dtype")) document["torch_dtype"] = name;
  document["dtype"] = name;
  return document.dump(2) + "\n";
}

}  // namespace zs
