#include "model/train/config/config_offload.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/train/config/config_recompute.h"
#include "model/train/config/optimizer_kind.h"

namespace zs {

namespace {

/// "adamw, lion or sgd"
std::string optimizers_on_host() {
  std::vector<std::string_view> names;
  for (const OptimizerKind& kind : optimizer_kinds())
    if (kind.updates_on_host) names.push_back(kind.name);
  std::sort(names.begin(), names.end());
  const std::string_view last = names.back();
  names.pop_back();
  return fmt::format("{} or {}", fmt::join(names, ", "), last);
}

/// Checks that what the host updates is in its memory.
void check_update(ConfigDraft& draft) {
  const Config& c = draft.config;
  if (!are_good(draft, {"offload.update"}) || c.offload.update != "host") return;
  if (are_good(draft, {"train.optimizer"}) && !optimizer_kind(c).updates_on_host)
    draft.report("offload.update",
                 fmt::format("offload.update = \"host\" does not go with train.optimizer = \"{}\"", c.train.optimizer),
                 "leave it out, or use " + optimizers_on_host());
  for (const auto& [key, place] :
       {std::pair("offload.weights", &c.offload.weights), std::pair("offload.gradients", &c.offload.gradients),
        std::pair("offload.moments", &c.offload.moments)}) {
    if (!are_good(draft, {key}) || *place == "host" || (place == &c.offload.moments && !has_moments(c))) continue;
    draft.report("offload.update", fmt::format("offload.update = \"host\" does not go with {} = \"{}\"", key, *place),
                 fmt::format("set {} = \"host\", or leave offload.update out", key));
  }
}

}  // namespace

bool accumulates_gradients(const Config& config) {
  const Config::Shard& shard = config.shard;
  const std::string& strategy = shard.strategy;
  if (shard.units == "plan") return true;  // units may have strategies of their own
  if (config.train.deterministic) return strategy == "ddp" || strategy == "hsdp";
  return strategy == "zero1" || strategy == "nested" || (strategy != "zero2" && !shard.reduce_every_micro_batch);
}

bool has_moments(const Config& config) {
  const OptimizerKind* const kind = find_optimizer_kind(config.train.optimizer);
  return kind == nullptr || kind->moments(config) > 0;  // an unknown one has been reported
}

void check_offload(ConfigDraft& draft) {
  const Config& c = draft.config;
  const auto without = [](const char* key, const std::string& place, const char* what) {
    return fmt::format("{} = \"{}\" does not go with {}", key, place, what);
  };
  if (are_good(draft, {"offload.weights", "precision.param", "precision.validation"}) &&
      !Config::Offload::disk_of(c.offload.weights).empty()) {
    if (c.precision.param == "f32")
      draft.report(
          "offload.weights", without("offload.weights", c.offload.weights, "precision.param \"f32\""),
          "f32 units come for each gather: keep them in the host's memory (\"host\"), or use param = \"bf16\"");
    else if (c.precision.validation == "f32")
      draft.report("offload.weights", without("offload.weights", c.offload.weights, "precision.validation \"f32\""),
                   "it gathers the master weights: keep them in the host's memory (\"host\"), or validate in bf16");
  }
  if (are_good(draft, {"offload.moments", "train.optimizer", "train.momentum"}) && c.offload.moments != "device" &&
      !has_moments(c))
    draft.report("offload.moments",
                 without("offload.moments", c.offload.moments, "train.optimizer \"sgd\" without momentum"),
                 "it has no moments: leave it out, or set train.momentum");
  if (are_good(draft, {"offload.weights", "offload.gradients", "offload.moments", "train.average"}) &&
      c.offload.has_any() && c.train.average > 0)
    draft.report("train.average",
                 fmt::format("train.average = {} does not go with what the host keeps (offload)", c.train.average),
                 "leave one of them out");
  if (are_good(draft, {"offload.weights", "offload.gradients", "run.lost_updates_every"}) &&
      (c.offload.weights != "device" || c.offload.gradients != "device") && c.run.lost_updates_every > 0)
    draft.report("run.lost_updates_every",
                 "run.lost_updates_every does not go with weights or gradients that the host keeps (offload)",
                 "leave one of them out");
  check_update(draft);
  if (are_good(draft, {"offload.activations", "train.recompute"}) && c.offload.activations == "host" &&
      !may_recompute_blocks(c.train.recompute))
    draft.report("offload.activations",
                 "offload.activations = \"host\" does not go with a train.recompute that recomputes no whole block",
                 "it is the inputs of such blocks that go there: set train.recompute = \"block\"");
  if (are_good(draft, {"offload.weights", "offload.gradients", "offload.accumulator", "offload.moments",
                       "offload.activations", "cuda.graph"}) &&
      c.offload.uses_host() && c.cuda.graph)
    draft.report("cuda.graph", "cuda.graph = true does not go with what the host keeps (offload)",
                 "leave one of them out");
  if (are_good(draft,
               {"offload.accumulator", "shard.strategy", "shard.reduce_every_micro_batch", "train.deterministic"}) &&
      c.offload.accumulator == "host" && !accumulates_gradients(c))
    draft.report("offload.accumulator",
                 fmt::format("offload.accumulator = \"host\" does not go with shard.strategy \"{}\"{}, where every "
                             "micro-batch is reduced to the master's gradient",
                             c.shard.strategy, c.train.deterministic ? " and train.deterministic" : ""),
                 c.train.deterministic ? "set offload.gradients = \"host\""
                                       : "set offload.gradients = \"host\", or shard.reduce_every_micro_batch = false");
  if (are_good(draft, {"offload.cpu_link_gbs", "device"}) && c.offload.cpu_link_gbs > 0 && c.device == "cuda")
    draft.report("offload.cpu_link_gbs", "offload.cpu_link_gbs does not go with device = \"cuda\"",
                 "leave it out: a GPU has a link of its own");
}

}  // namespace zs
