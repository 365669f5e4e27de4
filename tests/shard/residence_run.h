#pragma once

#include <catch2/catch.hpp>

#include <algorithm>
#include <string>

#include "model/train/plan/plan.h"
#include "tests/shard/tiny_training.h"

namespace zs::test {

/// Bytes by which an update that was left knows whether the device came to it.
inline constexpr std::int64_t kMarks = 64;

/// The same, trained by an optimizer as a configuration names it.
inline Config trained_by(Config config, const std::string& optimizer) {
  config.train.optimizer = optimizer;
  if (optimizer != "muon") return config;
  config.train.muon = {"blocks.*"};
  config.train.momentum = 0.95;
  config.train.nesterov = true;
  return config;
}

/// What the host keeps, by name.
inline Config with_host(Config config, const std::string& what) {
  config.offload.weights = what.find("weights") != what.npos ? "host" : "device";
  config.offload.gradients = what.find("gradients") != what.npos ? "host" : "device";
  config.offload.moments = what.find("moments") != what.npos ? "host" : "device";
  config.offload.activations = what.find("activations") != what.npos ? "host" : "device";
  return config;
}

/// All that a disk can keep.
inline std::string of_disk(const Config& config) {
  return config.precision.param == "f32" ? "moments" : "weights and moments";
}

/// And a disk, in a folder.
inline Config with_disk(Config config, const std::string& what, const std::string& folder) {
  if (what.find("weights") != what.npos) config.offload.weights = "disk:" + folder;
  if (what.find("moments") != what.npos) config.offload.moments = "disk:" + folder;
  return config;
}

/// The same training, to the bit, in the memory that was planned on both sides.
inline void check_alike(const Config& config, const Config& kept, const TinyOptions& options) {
  CAPTURE(kept.offload.weights, kept.offload.gradients, kept.offload.moments);
  CAPTURE(config.train.optimizer, config.shard.strategy, config.shard.layout, config.precision.param, options.ranks);
  const TinyResult usual = train_tiny(config, options), run = train_tiny(kept, options);
  CHECK(run.losses == usual.losses);
  CHECK(run.grad_norms == usual.grad_norms);
  CHECK(run.weights == usual.weights);
  std::int64_t peak_bytes = 0, host_bytes = 0;  // of the rank that has most
  for (int rank = 0; rank < options.ranks; ++rank) {
    const TrainPlan plan = make_plan(kept, rank, options.ranks);
    CHECK(plan.pinned_bytes > 0);
    peak_bytes = std::max(peak_bytes, plan.step_peak_bytes);
    host_bytes = std::max(host_bytes, plan.host_bytes);
  }
  for (const std::int64_t bytes : run.host_bytes) CHECK(bytes == host_bytes);
  for (const std::int64_t bytes : usual.host_bytes) CHECK(bytes == 0);
  // Updates that were left for a step take part in its peak: there are none in the first, nor behind a validation.
  const bool has_none = config.run.validate_every > 0;
  CHECK(run.peak_bytes.front() <= peak_bytes);
  for (std::size_t i = 1; i < run.peak_bytes.size(); ++i)
    CHECK(run.peak_bytes[i] == (has_none ? run.peak_bytes.front() : peak_bytes));
  CHECK(run.allocations.front() == 2);  // the device's and the host's memory, each at once
  CHECK(run.allocations.back() == 0);
  CHECK(verify_order(run.trace).empty());
}

inline void check_alike(const Config& config, const std::string& what, const TinyOptions& options) {
  check_alike(config, with_host(config, what), options);
}

}  // namespace zs::test
