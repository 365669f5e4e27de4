#include "model/train/config/config_lora.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "model/lora/lora_folder.h"

namespace zs {
namespace {

namespace fs = std::filesystem;

constexpr const char *kRank = "lora.rank", *kAlpha = "lora.alpha", *kTargets = "lora.targets",
                     *kDropout = "lora.dropout", *kPath = "lora.path";

std::set<std::string> modules_of(const std::vector<LoraProduct>& products) {
  std::set<std::string> modules;
  for (const LoraProduct& product : products) modules.insert(product.module);
  return modules;
}

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

/// Takes what the folder says; what was given beside it must say the same. Its dropout is not of its weights: who gives
/// 0 goes on without.
void take_folder(ConfigDraft& draft, const LoraConfig& folder, const std::vector<LoraProduct>& products) {
  LoraConfig& lora = draft.config.lora;
  const auto compare = [&](const char* key, bool is_same, const std::string& given, const std::string& theirs) {
    if (draft.is_given(key) && !is_same)
      draft.report(key, fmt::format("{} = {} contradicts lora.path, where it is {}", key, given, theirs),
                   "leave it out");
  };
  compare(kRank, lora.rank == folder.rank, fmt::format("{}", lora.rank), fmt::format("{}", folder.rank));
  compare(kAlpha, lora.alpha == folder.alpha, fmt::format("{}", lora.alpha), fmt::format("{}", folder.alpha));
  const bool has_targets = draft.is_given(kTargets);
  compare(
      kTargets,
      !has_targets || modules_of(matching(products, lora.targets)) == modules_of(matching(products, folder.targets)),
      fmt::format("{}", fmt::join(lora.targets, ", ")), fmt::format("{}", fmt::join(folder.targets, ", ")));
  const std::vector<std::string> targets = has_targets ? lora.targets : folder.targets;
  const double dropout = draft.is_given(kDropout) ? lora.dropout : folder.dropout;
  const std::string export_to = lora.export_to;
  lora = folder;
  lora.export_to = export_to;
  lora.targets = targets;
  lora.dropout = dropout;
}

/// True if everything is known without the folder, as in the configuration that a run has left.
bool is_adapter_described(const ConfigDraft& draft) {
  return draft.is_given(kRank) && draft.is_given(kAlpha) && draft.is_given(kTargets);
}

void read_folder(ConfigDraft& draft, const std::vector<LoraProduct>& products) {
  LoraConfig& lora = draft.config.lora;
  lora.path = found_adapter(draft);
  if (is_adapter_described(draft) && !exists(lora.path)) return;
  if (draft.config.model.path.empty())
    return draft.report(kPath, "lora.path is set, and model.path is not", "name the model that the adapter belongs to");
  take_folder(draft, read_lora_folder(lora.path, draft.config.model), products);
}

void check_rank(ConfigDraft& draft, const std::vector<LoraProduct>& targets) {
  const std::int64_t rank = draft.config.lora.rank;
  const auto smallest = std::min_element(targets.begin(), targets.end(), [](const auto& a, const auto& b) {
    return std::min(a.rows, a.columns) < std::min(b.rows, b.columns);
  });
  const std::int64_t most = std::min(smallest->rows, smallest->columns);
  if (rank > most)
    draft.report(kRank,
                 fmt::format("lora.rank {} is more than {} has, ({}, {})", rank, smallest->module, smallest->rows,
                             smallest->columns),
                 fmt::format("use at most {}", most));
}

void check(ConfigDraft& draft, const std::vector<LoraProduct>& products) {
  LoraConfig& lora = draft.config.lora;
  if (draft.config.shard.units == "plan") {
    const char* const key = draft.is_given(kRank) ? kRank : kPath;
    return draft.report(key, fmt::format("{} does not go with plan.apply: adapters are units of their own", key),
                        "leave plan.apply out, or the adapters");
  }
  if (lora.alpha == 0) lora.alpha = static_cast<double>(lora.rank);
  if (lora.dropout != 0 && draft.use == ConfigFor::training)
    draft.report(kDropout,
                 fmt::format("the adapter in lora.path was trained with a lora_dropout of {}, which is not supported",
                             lora.dropout),
                 "set lora.dropout = 0 to train on without");
  if (lora.targets.empty())
    return draft.report(kTargets, "lora.targets is missing", "name products of the model: " + names_of(products));
  check_rank(draft, matching(products, lora.targets));
}

bool has_sizes(const ConfigDraft& draft) {
  return std::none_of(draft.bad.begin(), draft.bad.end(), [](const auto& key) { return key.starts_with("model."); });
}

}  // namespace

void resolve_lora(ConfigDraft& draft) {
  LoraConfig& lora = draft.config.lora;
  if (!are_good(draft, {kRank, kAlpha, kTargets, kDropout, kPath}) || !has_sizes(draft)) return;
  if (lora.path.empty() && !lora.is_on()) {
    if (!lora.targets.empty() || !lora.export_to.empty() || lora.alpha != 0)
      draft.report(kRank, "lora.rank is 0, and other keys say what adapters shall be",
                   "give the rank of the adapters, such as lora.rank = 8, or leave all lora keys out");
    return;
  }
  try {
    const auto products = lora_products(draft.config.model);
    if (!lora.path.empty()) read_folder(draft, products);
    if (are_good(draft, {kRank, kAlpha, kTargets, kDropout, kPath})) check(draft, products);
  } catch (const Error& error) {
    const bool is_of_targets = error.code() == ExitCode::config;
    draft.bad.insert(is_of_targets ? kTargets : kPath);
    draft.problems.emplace_back(error.code(), error.what_happened(),
                                is_of_targets ? draft.where(kTargets) : error.where(), error.what_to_do());
  }
}

}  // namespace zs
