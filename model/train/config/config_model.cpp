#include "model/train/config/config_model.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "model/families/family.h"
#include "model/families/rotary_decoder.h"
#include "model/tokenizer/tokenizer.h"
#include "model/train/config/config_schema.h"
#include "model/train/config/expand_path.h"
#include "model/train/config/folder_model.h"
#include "runtime/base/not_fetched.h"

namespace zs {
namespace {

constexpr std::string_view kTable = "model.";
constexpr std::int64_t kByteVocab = 256;

std::string preset_names(const Family& family) {
  std::string names;
  for (const ModelConfig& preset : family.presets) names += (names.empty() ? "" : ", ") + preset.preset;
  return names;
}

void resolve_family(ConfigDraft& draft, const ModelConfig* preset) {
  ModelConfig& model = draft.config.model;
  if (!draft.is_given("model.family") && preset != nullptr) model.family = preset->family;
  if (preset == nullptr || !are_good(draft, {"model.family", "model.preset"}) || preset->family == model.family) return;
  draft.report(
      "model.preset",
      fmt::format("model.preset \"{}\" is a {}, not a {}", preset->preset, preset->family, model.family),
      fmt::format("leave model.family out, or use another preset ({})", preset_names(family_named(model.family))));
}

/// Takes from `base` what was not given.
void take_rest(ConfigDraft& draft, const ModelConfig& base) {
  Config from;
  from.model = base;
  from.model.family = draft.config.model.family;
  from.model.preset = draft.config.model.preset;
  for (const ConfigKey& key : config_keys()) {
    const std::string name(key.name);
    if (!key.name.starts_with(kTable) || draft.is_given(name) || draft.bad.count(name) != 0) continue;
    std::visit([&](auto* to) { *to = *std::get<decltype(to)>(key.slot(from)); }, key.slot(draft.config));
  }
}

/// A preset's groups go with its own heads, and its MLP with its own width; else, and where 0 was given, they are
/// derived.
void adapt_preset(ConfigDraft& draft, const ModelConfig& preset) {
  ModelConfig& model = draft.config.model;
  const auto adapt = [&](const char* key, std::int64_t& size, std::int64_t own, bool is_own) {
    if (!draft.is_given(key) || size == 0) size = is_own ? own : 0;
  };
  adapt("model.kv_heads", model.kv_heads, preset.kv_heads, model.heads == preset.heads);
  adapt("model.hidden", model.hidden, preset.hidden, model.width == preset.width);
}

/// The folder that the key names, from here or from beside the configuration file; absolute, so that config.toml finds
/// it from anywhere.
std::string found_folder(const ConfigDraft& draft) {
  namespace fs = std::filesystem;
  const fs::path path = expand_path(draft.config.model.path);
  std::error_code failed;
  const fs::path beside = fs::path(draft.source).parent_path() / path;
  const bool is_beside = path.is_relative() && !fs::exists(path, failed) && fs::exists(beside, failed);
  return fs::absolute(is_beside ? beside : path).lexically_normal().string();
}

/// True if the sizes are known without the folder, as in the configuration that a run has left: then a run can go on
/// without it.
bool is_described(const ConfigDraft& draft) {
  const auto keys = {"model.family", "model.layers", "model.heads", "model.width", "model.context", "model.vocab"};
  return std::all_of(keys.begin(), keys.end(), [&](const char* key) { return draft.is_given(key); });
}

/// Takes what the folder says of dropout, padding and routers' losses, but for what was given: that is a choice of each
/// training. All dropout is replaced by model.dropout.
void take_training_choices(const ConfigDraft& draft, ModelConfig& folder) {
  const ModelConfig& given = draft.config.model;
  const Family& family = family_named(folder.family);
  if (family.has("model.pad_token_id") && draft.is_given("model.pad_token_id"))
    folder.pad_token_id = given.pad_token_id;
  if (family.has("model.experts")) {
    folder.balance_loss = given.balance_loss;  // no folder has them
    folder.z_loss = given.z_loss;
  }
  if (!family.has("model.dropout")) return;
  if (draft.is_given("model.dropout")) {
    folder.dropout = given.dropout;
    folder.embedding_dropout = folder.attention_dropout = folder.residual_dropout = -1;
  }
  if (draft.is_given("model.embedding_dropout")) folder.embedding_dropout = given.embedding_dropout;
  if (draft.is_given("model.attention_dropout")) folder.attention_dropout = given.attention_dropout;
  if (draft.is_given("model.residual_dropout")) folder.residual_dropout = given.residual_dropout;
}

/// Takes what the folder says; what was given beside it must say the same.
void take_folder(ConfigDraft& draft, const ModelConfig& folder) {
  Config from;
  from.model = folder;
  from.model.path = draft.config.model.path;
  take_training_choices(draft, from.model);
  for (const ConfigKey& key : config_keys()) {
    const std::string name(key.name);
    if (!key.name.starts_with(kTable) || draft.bad.count(name) != 0) continue;
    const std::string given = toml_value(key.slot(draft.config)), theirs = toml_value(key.slot(from));
    if (draft.is_given(name) && given != theirs)
      draft.report(name, fmt::format("{} = {} contradicts model.path, where it is {}", name, given, theirs),
                   "leave it out");
  }
  draft.config.model = from.model;
}

/// Text goes through the folder's tokenizer, if it has one, unless the configuration says otherwise.
void take_tokenizer(ConfigDraft& draft) {
  Config& c = draft.config;
  if (draft.is_given("data.tokenizer") || c.data.kind != "text") return;
  std::error_code failed;
  for (const char* const name : {"tokenizer.json", "tokenizer.model"})
    if (std::filesystem::exists(std::filesystem::path(c.model.path) / name, failed)) c.data.tokenizer = c.model.path;
}

/// True if the model is that of a folder.
bool resolve_folder(ConfigDraft& draft) {
  ModelConfig& model = draft.config.model;
  if (model.path.empty() || !are_good(draft, {"model.path"})) return false;
  try {
    const std::string given = std::exchange(model.path, found_folder(draft));
    std::error_code failed;
    const bool is_there = std::filesystem::exists(model.path, failed);
    if (is_described(draft) && !is_there) return false;
    if (!is_there)
      throw Error(ExitCode::model, "there is no such folder", model.path,
                  is_like_hub_name(given) ? kFetchModel : "name the folder of a model");
    if (!std::filesystem::is_directory(model.path, failed))
      throw Error(ExitCode::model, "a model is a folder, and this is a file", model.path,
                  "name the folder that its config.json is in");
    take_folder(draft, folder_model(model.path));
    take_tokenizer(draft);
    if (!draft.is_given("run.export_dtype")) draft.config.run.export_dtype = folder_dtype(model.path);
  } catch (const Error& error) {
    draft.bad.insert(
        {"model.path", "model.layers", "model.heads", "model.width", "model.context", "model.vocab", "train.sequence"});
    draft.problems.push_back(error);
  }
  return true;
}

void require_sizes(ConfigDraft& draft, const std::string& presets) {
  const ModelConfig& model = draft.config.model;
  for (const auto& [key, size] : {std::pair("model.layers", model.layers),
                                  {"model.heads", model.heads},
                                  {"model.width", model.width},
                                  {"model.context", model.context}}) {
    if (size != 0 || draft.is_given(key) || draft.bad.count(key) != 0) continue;
    if (draft.bad.count("model.preset") != 0) {
      draft.bad.insert(key);
    } else {
      draft.report(key, fmt::format("{} is missing", key), fmt::format("give it, or a model.preset ({})", presets));
    }
  }
}

/// Vocabulary that the tokenizer's ids need; 1 where it cannot be used, which is reported.
std::int64_t tokenizer_vocab(ConfigDraft& draft) {
  try {
    return open_tokenizer(draft.config.data.tokenizer)->vocab_size();
  } catch (const Error& error) {
    draft.bad.insert({"data.tokenizer", "model.vocab"});
    draft.problems.push_back(error);
    return 1;
  }
}

void resolve_vocab(ConfigDraft& draft) {
  Config& c = draft.config;
  if (draft.is_given("model.vocab")) return;
  if (c.data.kind == "text") c.model.vocab = kByteVocab;
  if (!c.data.tokenizer.empty()) c.model.vocab = tokenizer_vocab(draft);
  if (draft.bad.count("data.kind") != 0) draft.bad.insert("model.vocab");
}

void refuse_foreign(ConfigDraft& draft, const Family& family) {
  Config defaults;
  for (const ConfigKey& key : config_keys()) {
    const std::string name(key.name);
    const auto others = families_with(name);
    if (!draft.is_given(name) || draft.bad.count(name) != 0 || others.empty() || family.has(name)) continue;
    if (toml_value(key.slot(draft.config)) == toml_value(key.slot(defaults))) continue;
    std::string names;
    for (const Family* other : others) names += fmt::format("{}\"{}\"", names.empty() ? "" : " or ", other->name);
    draft.report(name, fmt::format("{} does not go with model.family \"{}\"", name, family.name),
                 "leave it out, or use model.family = " + names);
  }
}

void check_heads(ConfigDraft& draft, const Family& family) {
  const ModelConfig& model = draft.config.model;
  if (!are_good(draft, {"model.width", "model.heads"})) return;
  const bool has_head_dim = family.has("model.head_dim") && model.head_dim > 0 && are_good(draft, {"model.head_dim"});
  if (!has_head_dim && model.width % model.heads != 0)
    draft.report("model.heads", fmt::format("model.heads {} does not divide model.width {}", model.heads, model.width),
                 "change one of them");
  if (!are_good(draft, {"model.family", "model.preset"})) return;
  if (family.has("model.kv_heads") && are_good(draft, {"model.kv_heads"}) && model.heads % model.kv_heads != 0)
    draft.report("model.kv_heads",
                 fmt::format("model.kv_heads {} does not divide model.heads {}", model.kv_heads, model.heads),
                 "change one of them");
  const std::int64_t head_dim = has_head_dim ? model.head_dim : model.width / model.heads;
  if (family.has("model.rotary_base") && head_dim % 2 != 0)
    draft.report(
        has_head_dim ? "model.head_dim" : "model.heads",
        fmt::format("heads of {} elements have no halves to turn", head_dim),
        has_head_dim ? "choose an even model.head_dim" : "choose model.width as an even multiple of model.heads");
}

void check_experts(ConfigDraft& draft, const Family& family) {
  const ModelConfig& model = draft.config.model;
  if (!family.has("model.experts") || !are_good(draft, {"model.experts", "model.experts_per_token"})) return;
  if (model.experts_per_token < 1 || model.experts_per_token > model.experts)
    draft.report("model.experts_per_token",
                 fmt::format("a token cannot have {} of {} experts", model.experts_per_token, model.experts),
                 "give model.experts, and model.experts_per_token from 1 to as many");
}

void check_layer_lists(ConfigDraft& draft) {
  const ModelConfig& model = draft.config.model;
  for (const auto& [key, layers] : {std::pair("model.dense_layers", &model.dense_layers),
                                    {"model.no_rope_layers", &model.no_rope_layers},
                                    {"model.global_layers", &model.global_layers}}) {
    if (!are_good(draft, {key, "model.layers"})) continue;
    const auto beyond = std::find_if(layers->begin(), layers->end(), [&](auto layer) { return layer >= model.layers; });
    if (beyond != layers->end())
      draft.report(key, fmt::format("{} names layer {} of {}", key, *beyond, model.layers),
                   fmt::format("name layers from 0 to {}", model.layers - 1));
  }
}

void check_padding(ConfigDraft& draft) {
  const ModelConfig& model = draft.config.model;
  if (are_good(draft, {"model.pad_token_id", "model.vocab"}) && model.pad_token_id >= model.vocab)
    draft.report("model.pad_token_id",
                 fmt::format("model.pad_token_id {} is not below model.vocab {}", model.pad_token_id, model.vocab),
                 "name a token of the model, or leave it out");
}

void check_rotary(ConfigDraft& draft) {
  const ModelConfig& model = draft.config.model;
  if (!are_good(draft, {"model.rotary_scaling", "model.rotary_low", "model.rotary_high"})) return;
  const bool is_yarn = model.rotary_scaling == "yarn";
  if ((is_yarn || model.rotary_scaling == "llama3") && model.rotary_low >= model.rotary_high)
    return draft.report(
        "model.rotary_low",
        fmt::format("model.rotary_low {} is not below model.rotary_high {}", model.rotary_low, model.rotary_high),
        "swap them, or leave them out");
  if (!is_yarn || !are_good(draft, {"model.rotary_context", "model.rotary_base", "model.heads", "model.width"})) return;
  const RotaryScaling scaling = rotary_scaling_of(model);
  if (!(scaling.first < scaling.last))
    draft.report("model.rotary_context",
                 fmt::format("model.rotary_context {} leaves no angle that turns {} to {} times in it",
                             model.rotary_context, model.rotary_low, model.rotary_high),
                 "give the context that the model was first trained with");
}

void check_lengths(ConfigDraft& draft) {
  const Config& c = draft.config;
  if (are_good(draft, {"data.kind", "model.vocab"}) && c.data.kind == "text" && c.data.tokenizer.empty() &&
      c.model.vocab < kByteVocab)
    draft.report("model.vocab", fmt::format("model.vocab {} is too small for bytes", c.model.vocab),
                 "use 256 or more with data.kind = \"text\"");
  if (are_good(draft, {"train.sequence", "model.context"}) && c.train.sequence > c.model.context)
    draft.report("train.sequence",
                 fmt::format("train.sequence {} is longer than model.context {}", c.train.sequence, c.model.context),
                 "shorten the sequence or enlarge the context");
}

}  // namespace

void resolve_model(ConfigDraft& draft) {
  if (resolve_folder(draft)) return;
  ModelConfig& model = draft.config.model;
  const ModelConfig* const preset = find_preset(model.preset);
  resolve_family(draft, preset);
  const Family* const found = find_family(model.family);
  const Family& family = found != nullptr ? *found : *families().front();  // an unknown name has been reported
  take_rest(draft, preset != nullptr ? *preset : family.defaults);
  if (preset != nullptr) adapt_preset(draft, *preset);
  require_sizes(draft, preset_names(family));
  resolve_vocab(draft);
  if (are_good(draft, {"model.family", "model.preset", "model.heads", "model.width"})) {
    refuse_foreign(draft, family);
    family.derive(model);
  }
}

void check_model_sizes(ConfigDraft& draft) {
  if (const Family* const family = find_family(draft.config.model.family)) {
    check_heads(draft, *family);
    check_experts(draft, *family);
  }
  check_layer_lists(draft);
  check_padding(draft);
  check_rotary(draft);
}

void check_model(ConfigDraft& draft) {
  check_model_sizes(draft);
  check_lengths(draft);
}

}  // namespace zs
