#include "model/train/plan/fit_settings.h"

#include <algorithm>

#include "model/train/config/config_offload.h"
#include "model/train/config/config_recompute.h"

namespace zs {
namespace {

/// True if a file with this configuration would be read, and the ranks can share the work so.
bool is_allowed(const Config& config, int ranks) {
  try {
    check_ranks(parse_config(to_toml(config), config.name + ".toml"), ranks);
    return true;
  } catch (const Error&) {
    return false;
  }
}

void add_new(std::vector<Config>& configs, Config config) {
  if (std::find(configs.begin(), configs.end(), config) == configs.end()) configs.push_back(std::move(config));
}

/// True if what the host keeps is not a part of the memory that is short.
bool has_own_memory(const MemoryDemand& demand) { return demand.gpus > 0 || demand.config.offload.device_mib > 0; }

/// Sets a strategy as the configuration of a run would have it by default.
void set_strategy(Config::Shard& shard, const std::string& name) {
  const Strategy strategy = strategy_of(name);
  shard.strategy = name;
  shard.reshard_after_forward = strategy == Strategy::zero3;
  shard.reduce_every_micro_batch = strategy != Strategy::zero1;
  shard.all_reduce_every_micro_batch = false;
}

/// Groups of ranks are there for a reason that memory does not know: of hosts, say. So is a plan of units. Where
/// nothing accumulates the device keeps it.
std::vector<Config> strategies(const Config& from, int ranks) {
  const Strategy set = strategy_of(from.shard.strategy);
  if (ranks == 1 || set == Strategy::hsdp || set == Strategy::nested || from.shard.units == "plan") return {from};
  std::vector<Config> configs;
  for (const char* name : {"ddp", "zero1", "zero2", "shard_grad_op", "zero3"}) {
    Config config = from;
    const bool is_set = from.shard.strategy == name;
    if (!is_set && strategy_of(name) == Strategy::shard_grad_op) continue;  // between its neighbours in everything
    if (!is_set) set_strategy(config.shard, name);
    if (!accumulates_gradients(config)) config.offload.accumulator = "device";
    if (is_set || is_allowed(config, ranks)) configs.push_back(std::move(config));
  }
  return configs;
}

/// True if a strategy allows all that is kept elsewhere.
bool is_possible(const Config& config, int ranks) {
  const std::vector<Config> all = strategies(config, ranks);
  return std::any_of(all.begin(), all.end(),
                     [&](const Config& one) { return one.offload == config.offload && is_allowed(one, ranks); });
}

/// Residences: nothing, then the moments, the masters, the gradients and what accumulates of them kept by the host;
/// then moments and masters on a disk, where the configuration names one.
std::vector<Config> residences(const MemoryDemand& demand) {
  std::vector<Config> configs;
  const Config::Offload& set = demand.config.offload;
  const std::string disk = Config::Offload::disk_of(set.moments).empty() ? set.weights : set.moments;
  if (has_own_memory(demand) || set.has_disk()) {
    Config config = demand.config;
    using Role = std::string Config::Offload::*;
    for (const Role kept : {&Config::Offload::weights, &Config::Offload::gradients, &Config::Offload::accumulator,
                            &Config::Offload::moments})
      config.offload.*kept = "device";
    config.offload.update = "device";
    configs.push_back(config);
    const auto move = [&](Role kept, const std::string& place) {
      Config more = config;
      more.offload.*kept = place;
      if (is_possible(more, demand.plan.ranks)) configs.push_back(config = more);
    };
    if (has_own_memory(demand))
      for (const Role kept : {&Config::Offload::moments, &Config::Offload::weights, &Config::Offload::gradients,
                              &Config::Offload::accumulator})
        move(kept, "host");
    for (Config& one : configs) {
      Config updated = one;
      updated.offload.update = set.update;
      if (has_own_memory(demand) && is_possible(updated, demand.plan.ranks)) one = updated;
    }
    config = configs.back();
    if (set.has_disk())
      for (const Role kept : {&Config::Offload::moments, &Config::Offload::weights}) move(kept, disk);
  }
  add_new(configs, demand.config);
  return configs;
}

/// Settings of recomputation; of blocks that are recomputed as a whole the host may keep the inputs.
std::vector<Config> recomputations(const Config& from, bool may_offload) {
  using Entries = std::vector<std::string>;
  std::vector<Entries> all = {{"none"}, {"attention"}, {"block"}};
  const Entries& set = from.train.recompute;
  if (std::find(all.begin(), all.end(), set) == all.end()) all.insert(all.end() - 1, set);  // patterns
  std::vector<Config> configs;
  for (const Entries& entries : all) {
    Config config = from;
    config.train.recompute = entries;
    if (may_offload || !may_recompute_blocks(entries)) config.offload.activations = "device";
    configs.push_back(config);
    if (!may_offload || !may_recompute_blocks(entries)) continue;
    config.offload.activations = "host";
    configs.push_back(config);
  }
  return configs;
}

}  // namespace

std::vector<FitSetting> fit_settings(const MemoryDemand& demand) {
  std::vector<Config> configs;
  for (const Config& residence : residences(demand))
    for (const Config& recomputed : recomputations(residence, has_own_memory(demand)))
      for (Config& config : strategies(recomputed, demand.plan.ranks)) add_new(configs, std::move(config));
  std::vector<FitSetting> settings;
  for (Config& config : configs) {
    const bool is_configured = config == demand.config;
    settings.push_back({std::move(config), is_configured});
  }
  return settings;
}

}  // namespace zs
