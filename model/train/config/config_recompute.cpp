#include "model/train/config/config_recompute.h"

#include <algorithm>
#include <array>

#include "model/train/config/pattern_entries.h"
#include "model/train/config/toml_text.h"

namespace zs {
namespace {

constexpr const char* kKey = "train.recompute";
constexpr std::array kParts = {"none", "attention", "block"};

bool is_part(const std::string& text) { return std::find(kParts.begin(), kParts.end(), text) != kParts.end(); }

RecomputeEntry entry_of(const std::string& text) {
  if (text.find('=') == std::string::npos)
    throw Error(ExitCode::config, fmt::format("{} has {}", kKey, toml_string(text.substr(0, 60))), {},
                "write none, attention, block or auto, alone, or \"PATTERN=PART\", such as \"blocks.{0-3}=block\"");
  PatternEntry entry = PatternEntry::parse(kKey, text, "blocks.{0-3}=block");
  if (!is_part(entry.value))
    throw Error(ExitCode::config, fmt::format("{} has {}", kKey, toml_string(text.substr(0, 60))), {},
                "recompute none, attention or block of the blocks that match");
  return {std::move(entry.pattern), std::move(entry.value)};
}

}  // namespace

bool is_recompute_auto(const std::vector<std::string>& entries) { return entries == std::vector<std::string>{"auto"}; }

std::vector<RecomputeEntry> recompute_entries(const std::vector<std::string>& entries) {
  if (entries.size() == 1 && is_part(entries[0])) return {{NamePattern("*"), entries[0]}};
  std::vector<RecomputeEntry> parsed;
  for (const std::string& text : entries) parsed.push_back(entry_of(text));
  return parsed;
}

bool may_recompute_blocks(const std::vector<std::string>& entries) {
  if (is_recompute_auto(entries)) return true;
  const std::vector<RecomputeEntry> parsed = recompute_entries(entries);
  return std::any_of(parsed.begin(), parsed.end(), [](const RecomputeEntry& entry) { return entry.part == "block"; });
}

void check_recompute(ConfigDraft& draft) {
  if (!are_good(draft, {kKey}) || is_recompute_auto(draft.config.train.recompute)) return;
  try {
    recompute_entries(draft.config.train.recompute);
  } catch (const Error& error) {
    draft.report(kKey, error.what_happened(), error.what_to_do());
  }
}

}  // namespace zs
