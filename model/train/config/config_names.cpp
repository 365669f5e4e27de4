#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "model/train/config/config_schema.h"
#include "runtime/base/name_pattern.h"

namespace zs {

std::optional<std::string_view> renamed_config_key(std::string_view name) {
  using Renamed = std::pair<std::string_view, std::string_view>;
  static constexpr std::array kRenamed = {Renamed{"comm.shadow_ms", "comm.race_check_ms"},
                                          Renamed{"shard.keep_ends", "shard.keep_root_unsharded"}};
  for (const auto& [before, now] : kRenamed)
    if (name == before) return now;
  return std::nullopt;
}

std::optional<std::string_view> nearest_config_key(std::string_view name) {
  constexpr std::size_t kLongestName = 80;  // a longer one is no misspelling, and the distance costs its square
  if (name.empty() || name.size() > kLongestName) return std::nullopt;
  const auto leaf_of = [](std::string_view key) { return key.substr(key.rfind('.') + 1); };
  std::optional<std::string_view> nearest;
  std::size_t best = name.size();
  for (const ConfigKey& key : config_keys()) {
    // The right leaf in the wrong table counts as near as well: `steps` for `train.steps`.
    const std::size_t whole = edit_distance(name, key.name);
    const std::size_t leaf = edit_distance(leaf_of(name), leaf_of(key.name));
    const std::size_t distance = std::min(whole, leaf + 1);
    const bool is_near = whole <= std::max<std::size_t>(2, name.size() / 4) || leaf <= leaf_of(name).size() / 4;
    if (is_near && distance < best) best = distance, nearest = key.name;
  }
  return nearest;
}

}  // namespace zs
