#include "model/train/config_dataset.h"

#include <filesystem>

namespace zs {

DatasetOptions dataset_options(const Config& config, const std::string& config_path, const std::string& build_folder) {
  DatasetOptions options;
  options.kind = config.data.kind == "text" ? DataKind::text : DataKind::tokens;
  options.token_bytes = config.data.token_bytes;
  options.train = config.data.train;
  options.validation = config.data.validation;
  options.validation_fraction = config.data.validation_fraction;
  const std::string beside = std::filesystem::path(config_path).parent_path().string();
  for (const std::string& folder : {std::string(), beside, build_folder})
    if (folder.empty() ? options.folders.empty() : folder != options.folders.back()) options.folders.push_back(folder);
  options.sequence = config.train.sequence;
  options.vocab = config.model.vocab;
  options.seed = static_cast<std::uint64_t>(config.train.seed);
  return options;
}

}  // namespace zs
