#include "model/train/run_dir/frozen_weights.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <vector>

#include "model/weights/weight_files.h"
#include "runtime/base/parse_integer.h"

namespace zs {
namespace {

namespace fs = std::filesystem;

constexpr const char *kFrozenFolder = "frozen.folder", *kFrozenBytes = "frozen.bytes", *kFrozenHash = "frozen.hash",
                     *kFrozenFormat = "config.precision.quantize";  // as checkpoints have all keys
constexpr std::int64_t kHashedBytes = std::int64_t{4} << 20;
constexpr const char* kNameFolder = "name the folder that has them by --set model.path=FOLDER";

struct FreeState {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

std::string hash_of_files(const WeightFiles& files) {
  const std::unique_ptr<XXH3_state_t, FreeState> state(XXH3_createState());
  XXH3_64bits_reset(state.get());
  std::vector<char> piece(static_cast<std::size_t>(kHashedBytes));
  std::map<std::string, std::string> paths;
  for (const WeightFiles::File& file : files.files()) paths[file.name] = file.path;
  for (const auto& [name, path] : paths) {
    const RegularFile opened(path);
    for (std::int64_t at = 0; at < opened.bytes(); at += kHashedBytes) {
      const std::int64_t bytes = std::min(kHashedBytes, opened.bytes() - at);
      opened.read(at, piece.data(), bytes);
      XXH3_64bits_update(state.get(), piece.data(), static_cast<std::size_t>(bytes));
    }
  }
  return fmt::format("{:016x}", XXH3_64bits_digest(state.get()));
}

}  // namespace

FrozenWeights FrozenWeights::of(const std::string& folder) {
  const WeightFiles files(folder);
  FrozenWeights weights{fs::absolute(folder).lexically_normal().string(), 0, hash_of_files(files)};
  for (const WeightFiles::File& file : files.files()) weights.bytes += file.bytes;
  return weights;
}

std::optional<FrozenWeights> FrozenWeights::in(const std::map<std::string, std::string>& attributes) {
  const auto value = [&](const char* key) {
    const auto found = attributes.find(key);
    return found == attributes.end() ? std::string() : found->second;
  };
  if (value(kFrozenHash).empty()) return std::nullopt;
  return FrozenWeights{value(kFrozenFolder), parse_integer<std::int64_t>(value(kFrozenBytes)).value_or(0),
                       value(kFrozenHash)};
}

const FrozenFormat* frozen_format_in(const std::map<std::string, std::string>& attributes) {
  const auto saved = attributes.find(kFrozenFormat);
  if (saved == attributes.end()) return nullptr;
  for (const FrozenFormat* format : {frozen_int8(), frozen_nf4()})
    if (saved->second == fmt::format("\"{}\"", format->name)) return format;
  return nullptr;
}

void name_frozen_format(const std::string& name, std::map<std::string, std::string>& attributes) {
  attributes[kFrozenFormat] = fmt::format("\"{}\"", name);
}

std::map<std::string, std::string> attributes_of_weights(const std::string& path) {
  return WeightFiles(path).files().front().header.metadata;
}

void FrozenWeights::add_to(std::map<std::string, std::string>& attributes) const {
  attributes[kFrozenFolder] = folder;
  attributes[kFrozenBytes] = fmt::to_string(bytes);
  attributes[kFrozenHash] = hash;
}

std::string FrozenWeights::found(const std::string& other, const std::string& saved) const {
  const std::string& place = other.empty() ? folder : other;
  std::error_code failed;
  if (fs::exists(place, failed)) return place;
  throw Error(ExitCode::model, fmt::format("the frozen weights are left out, and their folder is not there: {}", place),
              saved, kNameFolder);
}

FrozenWeights FrozenWeights::check(const std::string& other, const std::string& saved) const {
  FrozenWeights here = of(found(other, saved));
  if (here.hash == hash) return here;
  throw Error(ExitCode::model,
              fmt::format("the frozen weights are not those of {}: hash {} ({} bytes), there {} ({})", here.folder,
                          hash, bytes, here.hash, here.bytes),
              saved, kNameFolder);
}

void FrozenRecord::read(const std::string& folder) {
  if (!known_) reading_ = std::async(std::launch::async, FrozenWeights::of, folder);
}

void FrozenRecord::add_to(std::map<std::string, std::string>& attributes) {
  if (!known_) known_ = reading_.get();
  known_->add_to(attributes);
}

}  // namespace zs
