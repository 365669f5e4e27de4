#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/train/config/config.h"

namespace zs {

/// A model that shall be written for others to read.
struct ExportJob {
  std::string to;                 ///< a new folder, or a new file NAME.gguf
  std::string from;               ///< a run, a checkpoint, a configuration, or a model's folder
  bool is_average = false;        ///< the average of the weights (train.average) instead of these
  std::string dtype;              ///< f32, f16 or bf16; of a GGUF file q8_0, too; empty: what the folder has that the
                                  ///< model came from, else f32
  std::int64_t shard_mib = 5120;  ///< a file of weights has about so much at most
  bool is_adapter = false;        ///< what is written is the adapter alone, as peft loads it
};

/// Writes the file, or the folder: config.json, weights, and what the model came with (tokenizer,
/// generation_config.json). A model that has an adapter is written with it in its weights. One thread, in memory of one
/// tensor. Returns warnings. Throws Error.
std::vector<std::string> export_model(const ExportJob& job);

/// The same of a run that has ended: its weights are in `weights`, as save_weights writes them.
std::vector<std::string> export_run(const Config& config, const std::string& weights);
/// Its adapter alone.
void export_run_adapter(const Config& config, const std::string& weights);

/// Error(cannot_create) or Error(config) where the run could not write what it is to export.
void check_export(const Config& config);

}  // namespace zs
