#pragma once

#include <catch2/catch.hpp>

#include <algorithm>
#include <string>

#include "model/train/plan/plan.h"
#include "tests/shard/scheme_cases.h"
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
  config.offload.accumulator = what.find("accumulator") != what.npos ? "host" : "device";
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

/// The same training, to the bit, in the memory that was planned on both sides. The plan: the largest peaks of the
/// ranks, and the least that one of them pins.
inline TrainPlan check_same(const Config& config, const Config& kept, const TinyOptions& options) {
  CAPTURE(kept.offload.weights, kept.offload.gradients, kept.offload.accumulator, kept.offload.moments);
  CAPTURE(config.train.optimizer, config.shard.strategy, config.shard.layout, config.precision.param, options.ranks);
  const TinyResult usual = train_tiny(config, options), run = train_tiny(kept, options);
  CHECK(run.losses == usual.losses);
  CHECK(run.grad_norms == usual.grad_norms);
  CHECK(run.weights == usual.weights);
  TrainPlan plan = make_plan(kept, 0, options.ranks);
  std::int64_t most_pinned = plan.pinned_bytes;
  for (int rank = 1; rank < options.ranks; ++rank) {
    const TrainPlan other = make_plan(kept, rank, options.ranks);
    plan.step_peak_bytes = std::max(plan.step_peak_bytes, other.step_peak_bytes);
    plan.host_bytes = std::max(plan.host_bytes, other.host_bytes);
    plan.pinned_bytes = std::min(plan.pinned_bytes, other.pinned_bytes);
    most_pinned = std::max(most_pinned, other.pinned_bytes);
  }
  for (const std::int64_t bytes : run.host_bytes) CHECK(bytes == plan.host_bytes);
  for (const std::int64_t bytes : usual.host_bytes) CHECK(bytes == 0);
  // Updates that were left for a step take part in its peak: there are none in the first. Before a validation they are
  // made, and count, as the validation does, in the next step's line.
  const bool validates = config.run.validate_every > 0;
  CHECK(run.peak_bytes.front() <= plan.step_peak_bytes);
  for (std::size_t i = 1; i < run.peak_bytes.size(); ++i)
    CHECK(run.peak_bytes[i] == (validates ? run.peak_bytes[1] : plan.step_peak_bytes));
  // The device's and the host's memory, each at once.
  CHECK(run.allocations.front() == (most_pinned > 0 ? 2 : 1));
  CHECK(run.allocations.back() == 0);
  CHECK(verify_order(run.trace).empty());
  return plan;
}

/// And the host keeps something.
inline void check_alike(const Config& config, const Config& kept, const TinyOptions& options) {
  CHECK(check_same(config, kept, options).pinned_bytes > 0);
}

inline void check_alike(const Config& config, const std::string& what, const TinyOptions& options) {
  check_alike(config, with_host(config, what), options);
}

/// body(config, number) for each scheme that goes with so many ranks, in one layout after the other: another one after
/// so many schemes. Every second accumulates micro-batches.
template <class Body>
void for_each_scheme(const Config& base, int ranks, std::size_t schemes_a_layout, const Body& body) {
  std::size_t number = static_cast<std::size_t>(ranks);
  for (const std::string& name : scheme_names()) {
    const SchemeOptions scheme = scheme_of(name, ranks);
    if ((scheme.group_size > 0 || scheme.reshard_after_forward.group() > 0) && ranks < 4) continue;
    ++number;
    Config config = base;
    config.train.global_batch = ranks * (number % 2 == 0 ? 4 : 1);
    choose_scheme(config, scheme);
    const std::string& layout = layout_names()[number / schemes_a_layout % layout_names().size()];
    if (layout != "zero-copy" || scheme.strategy != Strategy::ddp) choose_layout(config, layout);
    body(config, number);
  }
}

}  // namespace zs::test
