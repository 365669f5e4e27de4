#include "model/weights/end_tokens.h"

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "model/json/strict_json.h"
#include "model/weights/regular_file.h"

namespace zs {
namespace {

constexpr const char* kKey = "eos_token_id";

std::int32_t token_of(const nlohmann::json& value, const std::string& file) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMost)
    refuse_weights(file, fmt::format("{} is no token id", kKey));
  return value.get<std::int32_t>();
}

}  // namespace

std::vector<std::int32_t> end_tokens_of(const std::string& folder) {
  for (const char* const name : {"generation_config.json", "config.json"}) {
    const std::string file = (std::filesystem::path(folder) / name).string();
    std::error_code failed;
    if (!std::filesystem::exists(file, failed)) continue;
    const nlohmann::json document = parse_document(read_text_file(file, ReaderLimits::kModelJsonBytes), file);
    if (!document.is_object()) refuse_weights(file, "the file is no JSON object");
    const auto found = document.find(kKey);
    if (found == document.end() || found->is_null()) return {};
    if (!found->is_array()) return {token_of(*found, file)};
    std::vector<std::int32_t> tokens;
    for (const nlohmann::json& value : *found) tokens.push_back(token_of(value, file));
    return tokens;
  }
  return {};
}

}  // namespace zs
