#include "model/lora/lora_folder.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "model/data/output_file.h"
#include "model/families/hf_config.h"
#include "model/json/strict_json.h"
#include "model/weights/regular_file.h"
#include "model/weights/weight_files.h"

namespace zs {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char *kConfigFile = "adapter_config.json", *kWeightsFile = "adapter_model.safetensors";
constexpr std::string_view kPrefix = "base_model.model.";
constexpr const char* kTask = "CAUSAL_LM";

/// Kinds of LoRA that give another output, where they are set.
constexpr const char* kForeign[] = {"use_dora",
                                    "use_rslora",
                                    "use_qalora",
                                    "use_bdlora",
                                    "lora_bias",
                                    "rank_pattern",
                                    "alpha_pattern",
                                    "modules_to_save",
                                    "layer_replication",
                                    "target_parameters",
                                    "trainable_token_indices",
                                    "alora_invocation_tokens",
                                    "arrow_config",
                                    "kasa_config",
                                    "monteclora_config",
                                    "velora_config"};

bool is_set(const json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) return value.get<double>() != 0;
  return !value.empty();
}

/// Checks init_lora_weights: with other values an adapter begins from other weights of the model than its files have.
void check_beginning(const HfConfig& config) {
  constexpr const char* kKey = "init_lora_weights";
  if (!config.has(kKey)) return;
  const json& value = config.document().at(kKey);
  if (!value.is_boolean() && value != "gaussian" && value != "orthogonal") config.refuse(kKey);
}

HfConfig read_config(const std::string& folder) {
  const std::string file = (fs::path(folder) / kConfigFile).string();
  HfConfig config(parse_document(read_text_file(file, ReaderLimits::kModelJsonBytes), file), file);
  config.require("peft_type", "LORA");
  config.require("bias", "none");
  for (const char* const key : kForeign)
    if (config.has(key) && is_set(config.document().at(key))) config.refuse(key);
  check_beginning(config);
  if (!config.has("r")) throw Error(ExitCode::model, "r is missing", file, "use the file that peft has written");
  return config;
}

/// "model.layers.3.self_attn.q_proj" of "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight"; empty where
/// the name is another.
std::string module_of(const std::string& tensor) {
  for (const std::string_view ending : {".lora_A.weight", ".lora_B.weight"})
    if (tensor.starts_with(kPrefix) && tensor.ends_with(ending))
      return tensor.substr(kPrefix.size(), tensor.size() - kPrefix.size() - ending.size());
  return {};
}

/// Modules of the products that the tensors are of.
std::vector<std::string> modules_of(const std::string& file, const std::vector<LoraProduct>& products) {
  std::set<std::string> known, modules;
  for (const LoraProduct& product : products) known.insert(product.module);
  std::vector<std::string> problems;
  const WeightFiles files(file);
  for (const auto& [name, tensor] : files.tensors()) {
    const std::string module = module_of(name);
    known.contains(module) ? void(modules.insert(module)) : problems.push_back("unknown " + shortened(name));
  }
  if (!problems.empty() || modules.empty())
    throw Error(ExitCode::model,
                fmt::format("not an adapter of this model's products{}{}", problems.empty() ? "" : ", ",
                            problems.empty() ? ": it has no tensors" : first_five(problems)),
                file, "use an adapter of the model in model.path");
  return {modules.begin(), modules.end()};
}

std::string weights_of(const std::string& folder) { return (fs::path(folder) / kWeightsFile).string(); }

json number(double value) {
  return value == std::floor(value) && std::abs(value) < 1e15 ? json(static_cast<std::int64_t>(value)) : json(value);
}

std::string config_json(const ModelConfig& model, const LoraConfig& lora) {
  const auto products = lora_products(model), targets = matching(products, lora.targets);
  std::vector<std::string> modules;
  for (const LoraProduct& target : targets) modules.push_back(target.module);
  nlohmann::ordered_json config = {{"alpha_pattern", json::object()},
                                   {"base_model_name_or_path", model.path},
                                   {"bias", "none"},
                                   {"fan_in_fan_out", targets.front().is_transposed},
                                   {"inference_mode", true},
                                   {"init_lora_weights", true},
                                   {"lora_alpha", number(lora.alpha)},
                                   {"lora_dropout", 0.0},
                                   {"modules_to_save", nullptr},
                                   {"peft_type", "LORA"},
                                   {"r", lora.rank},
                                   {"rank_pattern", json::object()},
                                   {"target_modules", shortest_patterns(products, modules)},
                                   {"task_type", kTask},
                                   {"use_dora", false},
                                   {"use_rslora", false}};
  return json_text(config) + "\n";
}

/// Some of another's parameters.
class AdapterSource final : public ParameterSource {
 public:
  explicit AdapterSource(std::shared_ptr<ParameterSource> all) : all_(std::move(all)) {
    for (const ParameterShape& parameter : all_->parameters())
      if (is_adapter_parameter(parameter.name)) parameters_.push_back(parameter);
  }
  const std::vector<ParameterShape>& parameters() const override { return parameters_; }
  void read(const std::string& parameter, std::int64_t first, std::int64_t count, float* out) override {
    all_->read(parameter, first, count, out);
  }

 private:
  std::shared_ptr<ParameterSource> all_;
  std::vector<ParameterShape> parameters_;
};

}  // namespace

LoraConfig read_lora_folder(const std::string& folder, const ModelConfig& model) {
  const HfConfig config = read_config(folder);
  const auto products = lora_products(model);
  LoraConfig lora{.rank = config.integer("r", 8),
                  .alpha = config.number("lora_alpha", 8),
                  .targets = shortest_patterns(products, modules_of(weights_of(folder), products)),
                  .dropout = config.number("lora_dropout", 0),
                  .path = folder};
  if (lora.alpha <= 0) config.refuse("lora_alpha");
  return lora;
}

std::unique_ptr<WeightImport> open_adapter(const ModelConfig& model, const LoraConfig& lora) {
  const auto targets = lora_targets(model, lora);
  return std::make_unique<WeightImport>(weights_of(lora.path), adapter_map(targets),
                                        adapter_parameters(targets, lora.rank), "adapter of this model and rank");
}

void export_adapter(ParameterSource& source, const ModelConfig& model, const LoraConfig& lora,
                    const std::string& folder) {
  export_file(source, adapter_map(lora_targets(model, lora)), weights_of(folder));
  write_file_atomically((fs::path(folder) / kConfigFile).string(), config_json(model, lora));
}

std::unique_ptr<ParameterSource> adapters_of(std::shared_ptr<ParameterSource> all) {
  return std::make_unique<AdapterSource>(std::move(all));
}

}  // namespace zs
