#include "model/train/config/folder_model.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "model/families/family.h"
#include "model/families/hf_config.h"
#include "model/train/config/config_model.h"
#include "model/train/config/config_schema.h"
#include "model/weights/mxfp4_tensor.h"

namespace zs {
namespace {

Error wrong(const std::string& what, const HfConfig& config) {
  return {ExitCode::model, what, config.file(), "use the file as it was written"};
}

void check_range(const ConfigKey& key, double value, const HfConfig& config) {
  if (!key.range.contains(value))
    throw wrong(fmt::format("{} would be {}: only {} is supported", key.name, value, key.range.str()), config);
}

/// A size of any length would be computed with, and so many layers made.
void check_ranges(const ConfigDraft& draft, const HfConfig& config) {
  Config model;
  model.model = draft.config.model;
  for (const ConfigKey& key : config_keys()) {
    if (!key.name.starts_with("model.")) continue;
    const ConfigSlot slot = key.slot(model);
    if (const auto* const integer = std::get_if<std::int64_t*>(&slot))
      check_range(key, static_cast<double>(**integer), config);
    if (const auto* const number = std::get_if<double*>(&slot)) check_range(key, **number, config);
  }
}

}  // namespace

ModelConfig folder_model(const std::string& folder) {
  const HfConfig config = HfConfig::of_folder(folder);
  const Family& family = family_of(config);
  config.refuse_foreign(family.settings);
  ConfigDraft draft;
  draft.config.model = family.from_config(config);
  check_ranges(draft, config);
  family.derive(draft.config.model);
  check_model_sizes(draft);
  if (!draft.problems.empty()) throw wrong(draft.problems.front().what_happened(), config);
  return draft.config.model;
}

std::string folder_dtype(const std::string& folder) {
  const HfConfig config = HfConfig::of_folder(folder);
  for (const char* const key : {"dtype", "torch_dtype"}) {
    const auto found = config.document().find(key);
    if (found == config.document().end()) continue;
    if (*found == "bfloat16") return "bf16";
    if (*found == "float16") return "f16";
  }
  return config.object("quantization_config").text("quant_method", "") == "mxfp4" ? "bf16" : "f32";
}

bool is_stored_in_bf16(const std::string& folder, const TensorMap& map) try {
  std::set<std::string> passed_over;
  for (const std::string& name : map.passed_over) {
    passed_over.insert(name);
    if (name.starts_with(map.prefix)) passed_over.insert(name.substr(map.prefix.size()));
  }
  const WeightFiles files(folder);
  return std::all_of(files.tensors().begin(), files.tensors().end(), [&](const auto& tensor) {
    return passed_over.contains(tensor.first) || files.header_of(tensor.second).dtype == FileDType::bf16 ||
           Mxfp4Tensor::is_part(files, tensor.first);
  });
} catch (const Error&) {  // the loader reports it
  return false;
}

}  // namespace zs
