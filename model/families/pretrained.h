#pragma once

#include <memory>
#include <string>

#include "model/job/run.h"
#include "model/nn/language_model.h"

namespace zs {

/// Language model that a Hugging Face folder describes (config.json), of any family that train knows, with initial
/// values of its own: freeze, change and shard it, then load_pretrained. Its blocks become units. Error(model) where
/// the folder is of no such model.
std::unique_ptr<LanguageModel> make_pretrained(const std::string& folder);

/// Fills the sharded model that make_pretrained has made of this folder with the folder's weights: every parameter must
/// be there. Rank 0 reads a unit at a time. Collective; blocks; between steps. Error(model) on every rank, before
/// anything is changed.
void load_pretrained(World& world, ShardedRuntime& runtime, const std::string& folder);

/// Model and what it is sharded by, which goes first.
struct Pretrained {
  std::unique_ptr<LanguageModel> net;
  std::unique_ptr<ShardedModel> model;
};
/// All of that: a model of the folder, sharded, with its weights.
Pretrained load_pretrained(Job& job, const std::string& folder, const FullyShardOptions& options = {});

/// Writes a folder that transformers loads, of a model that make_pretrained has made of `from`: its weights in f32, and
/// the config.json and the tokenizer's files of `from`. The folder `to` appears whole or not at all, where there is
/// none or an empty one. Rank 0 holds all weights meanwhile. Collective; blocks; between steps. Error(cannot_create) or
/// Error(io) on every rank.
void save_pretrained(World& world, ShardedRuntime& runtime, const std::string& from, const std::string& to);

}  // namespace zs
