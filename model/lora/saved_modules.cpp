#include "model/lora/saved_modules.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "model/families/family.h"
#include "runtime/base/check.h"

namespace zs {
namespace {

constexpr const char* kKey = "lora.modules_to_save";

std::string without_last(const std::string& name) { return name.substr(0, name.rfind('.')); }

bool is_named(const SavedModule& saved, const std::string& pattern) { return is_named_by(pattern, saved.module); }

Error no_match(const std::vector<SavedModule>& all, const std::string& pattern) {
  std::vector<std::string> names;
  for (const SavedModule& saved : all) names.push_back(saved.module.substr(saved.module.rfind('.') + 1));
  return {ExitCode::config,
          fmt::format("{}: no module outside of the blocks is called like \"{}\"", kKey, pattern),
          {},
          fmt::format("this model has {}; what is in the blocks has adapters", fmt::join(names, ", "))};
}

}  // namespace

std::vector<SavedModule> savable_modules(const ModelConfig& model) {
  std::vector<SavedModule> modules;
  for (const TensorRule& rule : family_named(model.family).tensor_map(model).rules) {
    if (rule.parameter.starts_with("blocks.")) continue;
    ZS_CHECK(rule.parts.size() == 1, "{} is of several tensors", rule.parameter);
    const std::string module = without_last(rule.parts.front().tensor);
    if (modules.empty() || modules.back().module != module)
      modules.push_back({module, without_last(rule.parameter), {}});
    modules.back().rules.push_back(rule);
  }
  return modules;
}

std::vector<SavedModule> saved_modules(const ModelConfig& model, const LoraConfig& lora) {
  const std::vector<SavedModule> all = savable_modules(model);
  for (const std::string& pattern : lora.modules_to_save)
    if (std::none_of(all.begin(), all.end(), [&](const SavedModule& saved) { return is_named(saved, pattern); }))
      throw no_match(all, pattern);
  std::vector<SavedModule> saved;
  std::copy_if(all.begin(), all.end(), std::back_inserter(saved), [&](const SavedModule& one) {
    return std::any_of(lora.modules_to_save.begin(), lora.modules_to_save.end(),
                       [&](const std::string& pattern) { return is_named(one, pattern); });
  });
  return saved;
}

std::vector<std::string> peft_names(const ModelConfig& model, const std::vector<SavedModule>& modules) {
  std::set<std::string> all;
  for (const TensorRule& rule : family_named(model.family).tensor_map(model).rules)
    for (const TensorPart& part : rule.parts) all.insert(without_last(part.tensor));
  std::vector<std::string> names;
  for (const SavedModule& saved : modules) {
    std::string name = saved.module.substr(saved.module.rfind('.') + 1);
    const auto found = std::count_if(all.begin(), all.end(), [&](const auto& other) { return other.ends_with(name); });
    names.push_back(found == 1 ? std::move(name) : saved.module);
  }
  return names;
}

std::vector<ParameterShape> trained_parameters(const ModelConfig& model, const LoraConfig& lora) {
  std::vector<ParameterShape> parameters = adapter_parameters(lora_targets(model, lora));
  const std::vector<SavedModule> saved = saved_modules(model, lora);
  if (saved.empty()) return parameters;
  const auto shapes = parameter_shapes(model);
  for (const SavedModule& one : saved)
    for (const TensorRule& rule : one.rules) parameters.push_back({rule.parameter, shapes.at(rule.parameter)});
  return parameters;
}

TensorMap trained_map(const ModelConfig& model, const LoraConfig& lora) {
  TensorMap map = adapter_map(lora_targets(model, lora));
  const TensorMap own = family_named(model.family).tensor_map(model);
  for (const SavedModule& saved : saved_modules(model, lora)) {
    for (TensorRule rule : saved.rules) {
      const bool is_head = !own.tied_head.empty() && rule.parts.front().tensor == own.token_embedding;
      rule.parts.front().tensor.insert(0, kPeftPrefix);
      if (is_head) {
        map.token_embedding = rule.parts.front().tensor;
        map.tied_head = std::string(kPeftPrefix) + own.tied_head;
      }
      map.rules.push_back(std::move(rule));
    }
  }
  return map;
}

}  // namespace zs
