#include "model/train/config/config_lora.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <set>
#include <utility>

#include "model/lora/lora_folder.h"
#include "model/lora/saved_modules.h"

namespace zs {
namespace {

namespace fs = std::filesystem;

constexpr const char *kRank = "lora.rank", *kAlpha = "lora.alpha", *kTargets = "lora.targets", *kRslora = "lora.rslora",
                     *kRanks = "lora.rank_pattern", *kAlphas = "lora.alpha_pattern", *kSaved = "lora.modules_to_save",
                     *kDropout = "lora.dropout", *kDora = "lora.dora", *kPath = "lora.path";
/// Keys that say what an adapter is, with its model.
constexpr std::initializer_list<const char*> kOfAdapter = {kRank,  kAlpha,  kTargets, kRslora,  kDora,
                                                           kRanks, kAlphas, kSaved,   kDropout, kPath};

/// The last parts of the products' names, each once.
std::string names_of(const std::vector<LoraProduct>& products) {
  std::vector<std::string> names;
  for (const LoraProduct& product : products) {
    const std::string name = product.module.substr(product.module.rfind('.') + 1);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

bool exists(const std::string& path) {
  std::error_code failed;
  return fs::exists(path, failed);
}

/// Folder of the adapter, looked up from here or from beside the configuration file; absolute, so that config.toml
/// finds it from anywhere.
std::string found_adapter(const ConfigDraft& draft) {
  const fs::path path = draft.config.lora.path, beside = fs::path(draft.source).parent_path() / path;
  const bool is_beside = path.is_relative() && !exists(path.string()) && exists(beside.string());
  return fs::absolute(is_beside ? beside : path).lexically_normal().string();
}

/// Meaning of keys of adapters: rank and scale of each target, so that two ways of saying the same are equal.
using Meaning = std::map<std::string, std::pair<std::int64_t, float>>;

Meaning meaning_of(const ModelConfig& model, const LoraConfig& lora, bool is_of_targets) {
  Meaning meaning;
  for (const LoraTarget& target : lora_targets(model, lora))
    meaning[target.module] = is_of_targets ? std::pair(std::int64_t{0}, 0.0f) : std::pair(target.rank, target.scale);
  return meaning;
}

std::string text_of(const std::vector<std::string>& list) { return fmt::format("{}", fmt::join(list, ", ")); }

/// Takes what the folder says; what was given beside it must say the same. Its dropout is not of its weights: who gives
/// another goes on with that.
void take_folder(ConfigDraft& draft, const LoraConfig& folder) {
  LoraConfig& lora = draft.config.lora;
  const ModelConfig& model = draft.config.model;
  const auto keep = [&](const char* key, auto LoraConfig::*member, LoraConfig& all) {
    if (draft.is_given(key)) all.*member = lora.*member;
  };
  const auto compare = [&](const char* key, bool is_same, const std::string& given, const std::string& theirs) {
    if (draft.is_given(key) && !is_same)
      draft.report(key, fmt::format("{} = {} contradicts lora.path, where it is {}", key, given, theirs),
                   "leave it out");
  };
  compare(kRank, lora.rank == folder.rank, fmt::format("{}", lora.rank), fmt::format("{}", folder.rank));
  compare(kAlpha, lora.alpha == folder.alpha, fmt::format("{}", lora.alpha), fmt::format("{}", folder.alpha));
  compare(kRslora, lora.rslora == folder.rslora, fmt::format("{}", lora.rslora), fmt::format("{}", folder.rslora));
  compare(kDora, lora.dora == folder.dora, fmt::format("{}", lora.dora), fmt::format("{}", folder.dora));
  const auto compare_list = [&](const char* key, std::vector<std::string> LoraConfig::*member) {
    if (!draft.is_given(key)) return;
    LoraConfig given = folder;
    given.*member = lora.*member;
    const bool is_of_targets = member == &LoraConfig::targets;
    if (is_of_targets) given.rank_pattern = given.alpha_pattern = {};
    LoraConfig theirs = folder;
    if (is_of_targets) theirs.rank_pattern = theirs.alpha_pattern = {};
    const auto paths = [&](const LoraConfig& one) {
      std::set<std::string> all;
      for (const SavedModule& saved : saved_modules(model, one)) all.insert(saved.path);
      return all;
    };
    const bool is_same = meaning_of(model, given, is_of_targets) == meaning_of(model, theirs, is_of_targets) &&
                         paths(given) == paths(theirs);
    compare(key, is_same, text_of(lora.*member), text_of(folder.*member));
  };
  compare_list(kTargets, &LoraConfig::targets);
  compare_list(kRanks, &LoraConfig::rank_pattern);
  compare_list(kAlphas, &LoraConfig::alpha_pattern);
  compare_list(kSaved, &LoraConfig::modules_to_save);
  LoraConfig taken = folder;
  taken.export_to = lora.export_to;
  keep(kTargets, &LoraConfig::targets, taken);
  keep(kDropout, &LoraConfig::dropout, taken);
  lora = std::move(taken);
}

/// True if everything is known without the folder, as in the configuration that a run has left.
bool is_adapter_described(const ConfigDraft& draft) {
  return draft.is_given(kRank) && draft.is_given(kAlpha) && draft.is_given(kTargets);
}

void read_folder(ConfigDraft& draft) {
  LoraConfig& lora = draft.config.lora;
  lora.path = found_adapter(draft);
  if (is_adapter_described(draft) && !exists(lora.path)) return;
  if (draft.config.model.path.empty())
    return draft.report(kPath, "lora.path is set, and model.path is not", "name the model that the adapter belongs to");
  take_folder(draft, read_lora_folder(lora.path, draft.config.model));
}

void check_rank(ConfigDraft& draft, const std::vector<LoraTarget>& targets) {
  const auto most = [](const LoraTarget& target) { return std::min(target.own_rows(), target.columns); };
  const auto worst = std::max_element(targets.begin(), targets.end(), [&](const auto& a, const auto& b) {
    return a.rank - most(a) < b.rank - most(b);
  });
  if (worst->rank > most(*worst)) {
    const char* const key = worst->rank == draft.config.lora.rank ? kRank : kRanks;
    draft.report(key,
                 fmt::format("{} {} is more than {} has, ({}, {})", key, worst->rank, worst->module, worst->own_rows(),
                             worst->columns),
                 fmt::format("use at most {}", most(*worst)));
  }
}

void check_dealt(ConfigDraft& draft, const std::vector<LoraTarget>& targets) {
  const auto of_experts =
      std::find_if(targets.begin(), targets.end(), [](const LoraTarget& target) { return target.experts > 0; });
  if (of_experts == targets.end() || draft.config.experts.parallel == 1) return;
  draft.report("experts.parallel",
               fmt::format("experts.parallel = {} does not go with adapters of {}", draft.config.experts.parallel,
                           of_experts->module),
               "leave experts.parallel out, or name products without experts in lora.targets");
}

void check(ConfigDraft& draft, const std::vector<LoraProduct>& products) {
  LoraConfig& lora = draft.config.lora;
  if (draft.config.shard.units == "plan") {
    const char* const key = draft.is_given(kRank) ? kRank : kPath;
    return draft.report(key, fmt::format("{} does not go with plan.apply: adapters are units of their own", key),
                        "leave plan.apply out, or the adapters");
  }
  if (lora.alpha == 0) lora.alpha = static_cast<double>(lora.rank);
  if (lora.targets.empty())
    return draft.report(kTargets, "lora.targets is missing", "name products of the model: " + names_of(products));
  const std::vector<LoraTarget> targets = lora_targets(draft.config.model, lora);
  check_rank(draft, targets);
  check_dealt(draft, targets);
  for (const SavedModule& saved : saved_modules(draft.config.model, lora))
    if (std::any_of(targets.begin(), targets.end(), [&](const auto& target) { return target.module == saved.module; }))
      draft.report(kSaved, fmt::format("{} and {} both name {}", kSaved, kTargets, saved.module),
                   "give it an adapter, or train it whole");
}

bool has_sizes(const ConfigDraft& draft) {
  return std::none_of(draft.bad.begin(), draft.bad.end(), [](const auto& key) { return key.starts_with("model."); });
}

}  // namespace

void resolve_lora(ConfigDraft& draft) {
  LoraConfig& lora = draft.config.lora;
  if (!are_good(draft, kOfAdapter) || !has_sizes(draft)) return;
  if (lora.path.empty() && !lora.is_on()) {
    if (!lora.targets.empty() || !lora.export_to.empty() || lora.alpha != 0 || lora.rslora || lora.dora ||
        !lora.rank_pattern.empty() || !lora.alpha_pattern.empty() || !lora.modules_to_save.empty())
      draft.report(kRank, "lora.rank is 0, and other keys say what adapters shall be",
                   "give the rank of the adapters, such as lora.rank = 8, or leave all lora keys out");
    return;
  }
  try {
    if (!lora.path.empty()) read_folder(draft);
    if (are_good(draft, kOfAdapter)) check(draft, lora_products(draft.config.model));
  } catch (const Error& error) {
    // A message about a key begins with it.
    const auto key = std::find_if(kOfAdapter.begin(), kOfAdapter.end(), [&](const char* name) {
      return error.code() == ExitCode::config && error.what_happened().find_first_of(": ") == std::strlen(name) &&
             error.what_happened().starts_with(name);
    });
    const bool is_of_key = key != kOfAdapter.end();
    draft.bad.insert(is_of_key ? *key : kPath);
    draft.problems.emplace_back(error.code(), error.what_happened(), is_of_key ? draft.where(*key) : error.where(),
                                error.what_to_do());
  }
}

}  // namespace zs
