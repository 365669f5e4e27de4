#pragma once

#include <string>
#include <vector>

#include "comm/world.h"
#include "model/train/session/session.h"
#include "runtime/device/device.h"
#include "runtime/device/trace.h"
#include "runtime/shard/checkpoint/checkpoint.h"
#include "runtime/shard/placement/shard_groups.h"

namespace zs {
struct TrainPlan;
}

namespace zs::test {

/// What a run of a few steps of a tiny GPT left on rank 0.
struct TinyResult {
  std::vector<float> losses;                              // of every micro-batch of every step, in global order
  std::vector<float> grad_norms;                          // a step
  std::vector<std::int64_t> peak_bytes;                   // a step, the largest of the ranks
  std::vector<std::int64_t> host_bytes;                   // a step, beside the device, the largest of the ranks
  std::vector<std::int64_t> allocations;                  // a step, the most of the ranks
  std::int64_t reserved_bytes = 0, allocation_calls = 0;  // at the end
  std::string weights;                                    // the hash of the final weights
  std::string saved;                                      // the last checkpoint's folder
  std::vector<TraceEntry> trace;                          // of the last step
  ShardGroups::Sent sent;                                 // in the last step
};

struct TinyOptions {
  int ranks = 1;
  int threads = 1;
  int steps = 3;
  std::uint64_t perturb_seed = 0;  // 0: that of the environment
  bool is_calm = false;            // never the environment's
  std::string checkpoints = {};    // a folder: every step is saved there
  std::string resume = {};         // a checkpoint's folder: goes on from there
  FileWatch* watch = nullptr;      // of the saves
  bool follows_plan = true;  // order and memory; else the first micro-batch records the order, and memory is allocated
                             // when it is needed
};

/// Under which all tests of a program run: none, or what the build says for its perturbed runs
/// (tests/shard/meson.build).
std::uint64_t perturb_seed_of_environment();

/// 3 blocks of width 32, sequences of 16, 24 micro-batches a step, deterministic; every rank gathers a copy
/// (zero_copy_in_tests).
Config tiny_config();
/// "gpt2", which tiny_config is, or another family of its layers, heads and width.
void choose_family(Config& config, const std::string& family);
/// As the keys of a configuration say it.
void choose_scheme(Config& config, const SchemeOptions& scheme);
/// Ways to cut units, by name, as the keys of a configuration say it: all parameters as one; the same, read where they
/// lie; each on its first dim; on its last; matrices on their last and the others whole.
const std::vector<std::string>& layout_names();
void choose_layout(Config& config, const std::string& name);

/// A micro-batch of zeros.
SampleBatch empty_batch(const Config& config);
/// Samples are a function of their number alone. Of `config`, which outlives it.
ReadSamples tiny_samples(const Config& config);
/// The same on every rank of `world`, and every rank's work verified: Error(internal) when no event orders a conflict.
TinyResult train_tiny(World& world, const Config& config, const TinyOptions& options);
/// On a device that is there, by `plan` if there is one.
TinyResult train_tiny(World& world, Device& device, const TrainPlan* plan, const Config& config,
                      const TinyOptions& options);
/// On `options.ranks` threads of this process (or on one rank without a transport).
TinyResult train_tiny(const Config& config, const TinyOptions& options);

}  // namespace zs::test
