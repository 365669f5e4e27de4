#include <algorithm>
#include <array>

#include "model/families/family.h"
#include "model/families/hf_config.h"
#include "runtime/base/usage_error.h"

namespace zs {

const Family& gpt2_family();
const Family& llama_family();
const Family& mistral_family();
const Family& qwen2_family();
const Family& qwen3_family();
const Family& mixtral_family();
const Family& qwen2_moe_family();
const Family& qwen3_moe_family();
const Family& olmoe_family();
const Family& olmo2_family();
const Family& phi3_family();
const Family& smollm3_family();
const Family& gemma3_family();
const Family& gpt_oss_family();

std::span<const Family* const> families() {
  static const std::array all = {&gpt2_family(),   &llama_family(),   &mistral_family(),   &qwen2_family(),
                                 &qwen3_family(),  &mixtral_family(), &qwen2_moe_family(), &qwen3_moe_family(),
                                 &olmoe_family(),  &olmo2_family(),   &phi3_family(),      &smollm3_family(),
                                 &gemma3_family(), &gpt_oss_family()};
  return all;
}

bool Family::has(std::string_view key) const { return std::find(keys.begin(), keys.end(), key) != keys.end(); }

const Family* find_family(std::string_view name) {
  for (const Family* family : families())
    if (family->name == name) return family;
  return nullptr;
}

const Family& family_of(const HfConfig& config) {
  const std::string architecture = config.architecture(), type = config.model_type();
  std::string known;
  for (const Family* family : families()) {
    const std::string_view own = family->model_type.empty() ? family->name : family->model_type;
    if (architecture.empty() ? type == own : architecture == family->architecture) {
      if (!type.empty() && type != own) config.refuse("model_type");  // transformers would go by it
      return *family;
    }
    known += fmt::format("{}{}", known.empty() ? "" : ", ", family->architecture);
  }
  throw Error(
      ExitCode::model,
      architecture.empty() ? "the file names no architecture" : fmt::format("unknown architecture {}", architecture),
      config.file(), "use one of " + known);
}

const Family& family_named(std::string_view name) {
  if (const Family* const found = find_family(name)) return *found;
  throw UsageError(fmt::format("there is no model family \"{}\"", name),
                   fmt::format("use one of {}", family_choices()));
}

const ModelConfig* find_preset(std::string_view name) {
  for (const Family* family : families())
    for (const ModelConfig& preset : family->presets)
      if (preset.preset == name) return &preset;
  return nullptr;
}

std::vector<const Family*> families_with(std::string_view key) {
  std::vector<const Family*> found;
  for (const Family* family : families())
    if (family->has(key)) found.push_back(family);
  return found;
}

std::string family_choices() {
  std::string names;
  for (const Family* family : families()) names += fmt::format("{}{}", names.empty() ? "" : "|", family->name);
  return names;
}

std::string preset_choices() {
  std::string names;
  for (const Family* family : families())
    for (const ModelConfig& preset : family->presets)
      names += fmt::format("{}{}", names.empty() ? "" : "|", preset.preset);
  return names;
}

}  // namespace zs
