#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/train/config/config.h"
#include "model/train/run_dir/run_mark.h"

namespace zs {

/// A model that shall be written for others to read.
struct ExportJob {
  std::string to;           ///< a new folder, or a new file NAME.gguf
  std::string from;         ///< a run, a checkpoint, a configuration, or a model's folder
  bool is_average = false;  ///< the average of the weights (train.average) instead of these
  std::string dtype = {};   ///< f32, f16 or bf16; of a GGUF file q8_0, q6_K or q4_K_M, too; empty: what the folder has
                            ///< that the model came from, else f32
  std::int64_t shard_mib = 5120;            ///< a file of weights has about so much at most
  bool is_adapter = false;                  ///< writes the adapter alone, as peft loads it
  std::vector<std::string> merges = {};     ///< "FOLDER" or "FOLDER=WEIGHT": adapters that are added to the weights
  RunMark* run = nullptr;                   ///< whose export it is: one that it has made before may go
  std::vector<std::string> overrides = {};  ///< --set
};

/// Writes the file, or the folder: config.json, weights, and what the model came with (tokenizer,
/// generation_config.json). A model that has an adapter, one that --set names too, is written with it in its weights.
/// What of --set has no effect is a warning on stderr, or an Error (unread_keys). One thread, in memory of one tensor.
/// Throws Error.
void export_model(const ExportJob& job);

/// Exports the model of a run that has ended: its weights are in `weights`, as save_weights writes them. `run` lists
/// it, and may go on where it is: an export of its own is replaced.
void export_run(const Config& config, const std::string& weights, RunMark& run);
/// Its adapter alone.
void export_run_adapter(const Config& config, const std::string& weights, RunMark& run);

/// Error(cannot_create), Error(config) or Error(model) where the run could not write what it is to export. `run`: that
/// goes on, if one does. `run_dir`: where it will be; empty: in a folder of its own.
void check_export(const Config& config, const RunMark* run, const std::string& run_dir);

}  // namespace zs
