#include "model/lora/lora_folder.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "model/data/output_file.h"
#include "model/families/family.h"
#include "model/families/hf_config.h"
#include "model/json/strict_json.h"
#include "model/lora/saved_modules.h"
#include "model/tokenizer/regex.h"
#include "model/weights/regular_file.h"
#include "model/weights/weight_files.h"

namespace zs {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char *kConfigFile = "adapter_config.json", *kWeightsFile = "adapter_model.safetensors";
constexpr const char* kTask = "CAUSAL_LM";
/// Name under which the embedding is written once more, as peft has it, where it is the head, too.
const std::string kTiedHead = "tied head";

/// Kinds of LoRA that give another output, where they are set.
constexpr const char* kForeign[] = {"use_qalora",
                                    "use_bdlora",
                                    "lora_bias",
                                    "layer_replication",
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
std::string named_module(const std::string& tensor) {
  for (const std::string_view ending :
       {".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector", ".lora_embedding_A", ".lora_embedding_B"})
    if (tensor.starts_with(kPeftPrefix) && tensor.ends_with(ending))
      return tensor.substr(kPeftPrefix.size(), tensor.size() - kPeftPrefix.size() - ending.size());
  return {};
}

/// Name under which peft's files have the embedding that an adapter is of once more; empty where none of these is it.
template <class Products>
std::string base_embedding(const Products& products) {
  for (const LoraProduct& product : products)
    if (product.is_embedding) return fmt::format("{}{}.base_layer.weight", kPeftPrefix, product.module);
  return {};
}

/// Modules that an adapter's tensors are of.
struct AdapterModules {
  std::set<std::string> targets, saved;
  std::set<std::string> used;  ///< words of modules_to_save that tensors belong to
  bool has_tied_head = false;  ///< the head is there, beside the embedding that it is
};

/// Modules that may be trained whole, by their tensors in peft's files; a head that is the embedding is the latter's.
std::map<std::string, std::string> savable_tensors(const ModelConfig& model) {
  std::map<std::string, std::string> modules;
  const TensorMap map = family_named(model.family).tensor_map(model);
  for (const SavedModule& one : savable_modules(model))
    for (const TensorRule& rule : one.rules) {
      const std::string& tensor = rule.parts.front().tensor;
      modules[std::string(kPeftPrefix) + tensor] = one.module;
      if (tensor == map.token_embedding && !map.tied_head.empty())
        modules[std::string(kPeftPrefix) + map.tied_head] = one.module;
    }
  return modules;
}

/// Names that a folder's configuration has.
struct PeftWords {
  std::vector<std::string> modules_to_save, target_parameters;
};

/// Module that an adapter's tensor is of. Of packed experts peft's files do not say which of their tensors, where one
/// alone has an adapter: target_parameters does. Empty where the name is another.
std::string module_of(const std::string& tensor, const WeightFiles& files, const PeftWords& words) {
  const std::string module = named_module(tensor), inner = module + ".base_layer", gates = ".gate_up_proj";
  constexpr std::string_view kExperts = ".mlp.experts", kWrapped = ".mlp.experts.base_layer";
  if (module.ends_with(kWrapped)) return module.substr(0, module.rfind('.')) + gates;
  if (!module.ends_with(kExperts)) return module;
  const bool has_inner = std::any_of(files.tensors().begin(), files.tensors().end(),
                                     [&](const auto& one) { return named_module(one.first) == inner; });
  const bool is_of_gates = std::any_of(
      words.target_parameters.begin(), words.target_parameters.end(),
      [&](const std::string& word) { return module + gates == word || (module + gates).ends_with("." + word); });
  return module + (!has_inner && is_of_gates ? gates : ".down_proj");
}

/// Modules by the names of their tensors.
AdapterModules modules_of(const std::string& file, const ModelConfig& model, const PeftWords& words) {
  std::set<std::string> products;
  const std::vector<LoraProduct> all = lora_products(model);
  for (const LoraProduct& product : all)
    if (!product.is_of_router) products.insert(product.module);
  const std::map<std::string, std::string> savable = savable_tensors(model);
  AdapterModules modules;
  std::vector<std::string> problems;
  const WeightFiles files(file);
  for (const auto& [name, tensor] : files.tensors()) {
    const std::string module = module_of(name, files, words), owner = name.substr(0, name.rfind('.'));
    const auto saved = savable.find(name);
    bool is_saved = false;
    for (const std::string& word : words.modules_to_save) {
      const bool is_named = owner.ends_with(word) || (saved != savable.end() && saved->second.ends_with(word));
      if (module.empty() && is_named) is_saved = true, modules.used.insert(word);
    }
    if (products.contains(module)) {
      modules.targets.insert(module);
    } else if (name == base_embedding(all)) {  // open_adapter compares it
      continue;
    } else if (is_saved && saved != savable.end()) {
      modules.saved.insert(saved->second);
      modules.has_tied_head |= !owner.ends_with(saved->second);
    } else {
      problems.push_back((is_saved ? "modules_to_save in the blocks, " : "unknown ") + shortened(name));
    }
  }
  if (!problems.empty() || modules.targets.empty())
    throw Error(ExitCode::model,
                fmt::format("not an adapter of this model's products{}{}", problems.empty() ? "" : ", ",
                            problems.empty() ? ": it has no tensors" : first_five(problems)),
                file, "use an adapter of the model in model.path");
  return modules;
}

std::string weights_of(const std::string& folder) { return (fs::path(folder) / kWeightsFile).string(); }

json number(double value) {
  return value == std::floor(value) && std::abs(value) < 1e15 ? json(static_cast<std::int64_t>(value)) : json(value);
}

std::vector<std::string> words_of(const HfConfig& config, const char* key) {
  if (!config.has(key)) return {};
  const json& list = config.document().at(key);
  if (!list.is_array()) config.refuse(key);
  std::vector<std::string> words;
  for (const json& word : list) {
    if (!word.is_string() || word.get_ref<const std::string&>().empty()) config.refuse(key);
    words.push_back(word.get<std::string>());
  }
  return words;
}

/// Modules by what differs of them from the rest.
using ModulesByValue = std::map<double, std::vector<std::string>>;

/// Modules that rank_pattern or alpha_pattern names, whose keys are expressions that the end of a name matches. Refused
/// where two say different things of one: in a file there is no first.
ModulesByValue read_pattern(const HfConfig& config, const char* key, const std::set<std::string>& modules) {
  ModulesByValue values;
  if (!config.has(key)) return values;
  const json& patterns = config.document().at(key);
  if (!patterns.is_object()) config.refuse(key);
  std::map<std::string, double> of_module;
  Regex::Scratch scratch;
  for (const auto& [pattern, value] : patterns.items()) {
    if (!value.is_number() || value.get<double>() <= 0) config.refuse(key);
    const Regex expression("^(?:.*\\.)?(?:" + pattern + ")$", key);
    for (const std::string& module : modules) {
      if (!expression.find(module, 0, scratch)) continue;
      const auto [known, is_new] = of_module.emplace(module, value.get<double>());
      if (!is_new && known->second != value.get<double>()) config.refuse(key);
    }
  }
  for (const auto& [module, value] : of_module) values[value].push_back(module);
  return values;
}

/// Entries of lora.rank_pattern, or of lora.alpha_pattern; and below what peft has for them.
std::vector<std::string> entries_of(const std::vector<LoraProduct>& products, const ModulesByValue& values) {
  std::vector<std::string> entries;
  for (const auto& [value, modules] : values)
    for (const std::string& pattern : shortest_patterns(products, modules))
      entries.push_back(fmt::format("{}={}", pattern, number(value).dump()));
  return entries;
}

json pattern_json(const std::vector<LoraProduct>& products, const ModulesByValue& values) {
  json patterns = json::object();
  for (const auto& [value, modules] : values)
    for (const std::string& pattern : shortest_patterns(products, modules)) patterns[pattern] = number(value);
  return patterns;
}

/// True if what is trained whole is the head as well.
bool has_tied_embedding(const ModelConfig& model, const std::vector<SavedModule>& saved) {
  return model.tied_head && std::any_of(saved.begin(), saved.end(), [&](const SavedModule& one) {
           return one.rules.front().parameter == kTokenEmbedding;
         });
}

/// "lm_head" of a model whose head is the embedding.
std::string module_of_head(const ModelConfig& model) {
  const std::string head = family_named(model.family).tensor_map(model).tied_head;
  return head.substr(0, head.rfind('.'));
}

std::string config_json(const ModelConfig& model, const LoraConfig& lora) {
  const auto products = lora_products(model);
  const auto targets = lora_targets(model, lora);
  std::vector<std::string> modules, tensors;  // modules that peft wraps; tensors of modules
  ModulesByValue ranks, alphas;
  for (const LoraTarget& target : targets) {
    (target.experts > 0 ? tensors : modules).push_back(target.module);
    if (target.rank != lora.rank) ranks[static_cast<double>(target.rank)].push_back(target.module);
    if (target.alpha != lora.alpha) alphas[target.alpha].push_back(target.module);
  }
  const auto saved = saved_modules(model, lora);
  std::vector<std::string> names = peft_names(model, saved);
  if (has_tied_embedding(model, saved)) names.push_back(module_of_head(model));
  nlohmann::ordered_json config = {{"alpha_pattern", pattern_json(products, alphas)},
                                   {"base_model_name_or_path", model.path},
                                   {"bias", "none"},
                                   {"fan_in_fan_out", targets.front().is_transposed},
                                   {"inference_mode", true},
                                   {"init_lora_weights", true},
                                   {"lora_alpha", number(lora.alpha)},
                                   {"lora_dropout", lora.dropout},
                                   {"modules_to_save", saved.empty() ? json() : json(names)},
                                   {"peft_type", "LORA"},
                                   {"r", lora.rank},
                                   {"rank_pattern", pattern_json(products, ranks)},
                                   {"target_modules", shortest_patterns(products, modules)},
                                   {"task_type", kTask},
                                   {"use_dora", lora.dora},
                                   {"use_rslora", lora.rslora}};
  if (!tensors.empty()) config["target_parameters"] = shortest_patterns(products, tensors);
  if (has_tied_embedding(model, saved)) config["ensure_weight_tying"] = true;
  return json_text(config) + "\n";
}

/// Values of a tensor, f32, from element `first` on.
std::vector<float> stored_values(WeightFiles& files, const std::string& name, std::int64_t first, std::int64_t count) {
  const FileDType dtype = files.find(name)->dtype;
  const std::int64_t size = bits_of(dtype) / 8;
  std::vector<char> stored(static_cast<std::size_t>(count * size));
  files.read(name, first * size, stored.data(), count * size);
  std::vector<float> values(static_cast<std::size_t>(count));
  to_f32(dtype, stored.data(), values.data(), count);
  return values;
}

/// Checks that the embedding which peft has saved beside its adapter is the model's, rounded as the file is.
void check_base_embedding(const std::string& saved, const ModelConfig& model, const LoraConfig& lora) {
  WeightFiles adapter(weights_of(lora.path));
  if (adapter.find(saved) == nullptr) return;
  WeightFiles base(model.path);
  const TensorMap map = family_named(model.family).tensor_map(model);
  std::string name = map.token_embedding;
  if (base.find(name) == nullptr && name.starts_with(map.prefix)) name = name.substr(map.prefix.size());
  if (base.find(name) == nullptr) name = map.tied_head;
  constexpr std::int64_t kPiece = std::int64_t{1} << 20;
  bool is_same = base.find(name) != nullptr && adapter.find(saved)->shape == base.find(name)->shape;
  const std::int64_t elems = is_same ? adapter.find(saved)->elems() : 0;
  for (std::int64_t first = 0; is_same && first < elems; first += kPiece) {
    const std::int64_t count = std::min(kPiece, elems - first);
    const auto theirs = stored_values(adapter, saved, first, count), ours = stored_values(base, name, first, count);
    is_same = std::equal(theirs.begin(), theirs.end(), ours.begin(), [&](float a, float b) {
      return a == b || (adapter.find(saved)->dtype == FileDType::bf16 && a == static_cast<float>(BFloat16(b)));
    });
  }
  if (!is_same)
    throw Error(ExitCode::model, fmt::format("{} is another embedding than the model's", saved), weights_of(lora.path),
                "use the model that the adapter was trained beside");
}

/// Some of another's parameters.
class AdapterSource final : public ParameterSource {
 public:
  AdapterSource(std::shared_ptr<ParameterSource> all, std::vector<ParameterShape> parameters)
      : all_(std::move(all)), parameters_(std::move(parameters)) {}
  const std::vector<ParameterShape>& parameters() const override { return parameters_; }
  void read(const std::string& parameter, std::int64_t first, std::int64_t count, float* out) override {
    all_->read(parameter == kTiedHead ? kTokenEmbedding : parameter, first, count, out);
  }

 private:
  std::shared_ptr<ParameterSource> all_;
  std::vector<ParameterShape> parameters_;
};

}  // namespace

LoraConfig read_lora_folder(const std::string& folder, const ModelConfig& model) {
  const HfConfig config = read_config(folder);
  const auto products = lora_products(model);
  PeftWords words{words_of(config, "modules_to_save"), words_of(config, "target_parameters")};
  std::vector<std::string>& saved = words.modules_to_save;
  std::sort(saved.begin(), saved.end());
  saved.erase(std::unique(saved.begin(), saved.end()), saved.end());
  const AdapterModules modules = modules_of(weights_of(folder), model, words);
  if (modules.used.size() != saved.size()) config.refuse("modules_to_save");
  const std::vector<std::string> targets(modules.targets.begin(), modules.targets.end());
  LoraConfig lora{.rank = config.integer("r", 8),
                  .alpha = config.number("lora_alpha", 8),
                  .rslora = config.boolean("use_rslora", false),
                  .dora = config.boolean("use_dora", false),
                  .targets = shortest_patterns(products, targets),
                  .rank_pattern = entries_of(products, read_pattern(config, "rank_pattern", modules.targets)),
                  .alpha_pattern = entries_of(products, read_pattern(config, "alpha_pattern", modules.targets)),
                  .modules_to_save = {modules.saved.begin(), modules.saved.end()},
                  .dropout = config.number("lora_dropout", 0),
                  .path = folder};
  if (lora.alpha <= 0) config.refuse("lora_alpha");
  if (!base_embedding(matching(products, lora.targets)).empty()) {
    if (lora.dora) config.refuse("use_dora");
    if (model.tied_head && config.boolean("ensure_weight_tying", false)) config.refuse("ensure_weight_tying");
  }
  const bool is_one = modules.has_tied_head && config.boolean("ensure_weight_tying", false);
  if (has_tied_embedding(model, saved_modules(model, lora)) && !is_one)
    throw Error(ExitCode::model, "modules_to_save has the embedding, which is this model's head too, and trains two",
                config.file(), "name the embedding and the head in it, with ensure_weight_tying = true");
  return lora;
}

std::unique_ptr<WeightImport> open_adapter(const ModelConfig& model, const LoraConfig& lora) {
  TensorMap map = trained_map(model, lora);
  const std::string base = base_embedding(lora_targets(model, lora));
  if (!base.empty()) map.passed_over.push_back(base);
  auto weights = std::make_unique<WeightImport>(weights_of(lora.path), map, trained_parameters(model, lora),
                                                "adapter of this model and rank");
  if (!base.empty()) check_base_embedding(base, model, lora);
  return weights;
}

void export_adapter(ParameterSource& source, const ModelConfig& model, const LoraConfig& lora,
                    const std::string& folder) {
  TensorMap map = trained_map(model, lora);
  if (!map.tied_head.empty()) map.rules.push_back({kTiedHead, {{map.tied_head, model.vocab}}});
  export_file(source, map, weights_of(folder));
  write_file_atomically((fs::path(folder) / kConfigFile).string(), config_json(model, lora));
}

std::unique_ptr<ParameterSource> trained_part(std::shared_ptr<ParameterSource> all, const ModelConfig& model,
                                              const LoraConfig& lora) {
  std::vector<ParameterShape> parameters = trained_parameters(model, lora);
  const auto embedding = std::find_if(parameters.begin(), parameters.end(), [](const ParameterShape& parameter) {
    return parameter.name == kTokenEmbedding;
  });
  if (model.tied_head && embedding != parameters.end()) parameters.push_back({kTiedHead, embedding->shape});
  return std::make_unique<AdapterSource>(std::move(all), std::move(parameters));
}

}  // namespace zs
