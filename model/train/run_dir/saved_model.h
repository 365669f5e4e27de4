#pragma once

#include <string>
#include <vector>

#include "model/train/config/config.h"

namespace zs {

/// The file that a run's end leaves in its folder.
inline constexpr const char* kFinalWeights = "model.safetensors";

/// True if the final weights of a run are there and not older than `checkpoint`, its newest; empty: it has none. Times
/// of files count. Where both have the same one, as the clock's ticks of some milliseconds allow, the weights win: a
/// run writes them last.
bool has_final_weights(const std::string& run_dir, const std::string& checkpoint);

/// A model that is there to be evaluated, or sampled from.
struct SavedModel {
  // Places of the weights; one of these has them.
  std::string checkpoint = {};  ///< its folder
  std::string weights = {};     ///< the file that a run's end has left
  std::string folder = {};      ///< as transformers writes it
  std::string run_dir = {};     ///< directory of the run that has saved it; empty: it lies alone
};

/// `path`: a checkpoint's folder, a run's, which stands for its newest checkpoint or its final weights, whichever were
/// written last, or a model's, which has a config.json. Error(checkpoint) where there is none of them. Changes nothing.
SavedModel find_saved_model(const std::string& path);

/// Configuration of the run that saved the model, as far as the model, its numbers and its data go, with `overrides`
/// (--set) on top: device, ranks, watchdog and the run's folder are the defaults. The data is that of the run's
/// config.toml, where there is one: its names are absolute. Of a model's folder: f32, its own tokenizer, and windows of
/// at most 1024 tokens unless train.sequence says otherwise. `files`: what will be read; of a folder with a tokenizer
/// they are text, unless all their names end in ".bin": then they are token ids. Throws ConfigError, and
/// Error(checkpoint) where the checkpoint does not say all of it.
Config config_of(const SavedModel& model, const std::vector<std::string>& overrides,
                 const std::vector<std::string>& files);

}  // namespace zs
