#include "model/train/plan/memory_check.h"

#include <algorithm>
#include <functional>

#include "model/train/config/config_offload.h"
#include "model/train/config/config_recompute.h"
#include "model/train/config/optimizer_kind.h"
#include "model/train/session/session.h"
#include "runtime/base/units.h"
#include "runtime/tensor/ops.h"

namespace zs {
namespace {

using Changes = std::vector<MemoryChange>;

MemoryChange change(const MemoryDemand& demand, std::string text) { return {demand, std::move(text)}; }

void take_bytes(MemoryChange& one) {
  const TrainPlan plan = make_plan(one.demand.config, one.demand.plan);
  one.rank_bytes = plan.rank_bytes().device;
  one.host_bytes = plan.rank_bytes().host;
  one.disk_bytes = plan.rank_bytes().disk;
}

// Each list goes from the smallest change to the one that saves most.

Changes recomputations(const MemoryDemand& demand) {
  Changes changes;
  using Entries = std::vector<std::string>;
  const Entries& set = demand.config.train.recompute;
  for (const char* part : {"attention", "block"}) {
    // Patterns may save more already than all attention would.
    if (set == Entries{"block"} || (set != Entries{"none"} && std::string(part) == "attention")) continue;
    changes.push_back(change(demand, fmt::format("set train.recompute={}", part)));
    changes.back().demand.config.train.recompute = {part};
  }
  return changes;
}

Changes micro_batches(const MemoryDemand& demand) {
  Changes changes;
  const auto& train = demand.config.train;
  for (std::int64_t size = train.micro_batch - 1; size > 0; --size) {
    if (train.global_batch % (size * data_shares(demand.config, demand.plan.ranks)) != 0) continue;
    changes.push_back(change(demand, fmt::format("set train.micro_batch={}", size)));
    changes.back().demand.config.train.micro_batch = size;
  }
  return changes;
}

Changes loss_chunks(const MemoryDemand& demand) {
  Changes changes;
  constexpr std::int64_t kSmallest = 32;
  const std::int64_t tokens = demand.config.train.micro_batch * demand.config.train.sequence;
  const std::int64_t set = demand.config.train.loss_chunk;
  std::int64_t chunk =
      set > 0 ? std::min(set, tokens)
              : lm_head_chunk_rows(tokens, padded_vocab(demand.config.model.vocab) / demand.config.tensor.parallel,
                                   demand.plan.device);
  while ((chunk = chunk / 2 / kSmallest * kSmallest) >= kSmallest) {
    changes.push_back(change(demand, fmt::format("set train.loss_chunk={}", chunk)));
    changes.back().demand.config.train.loss_chunk = chunk;
  }
  return changes;
}

/// Changes of the size of units, where blocks share them.
Changes unit_sizes(const MemoryDemand& demand) {
  Changes changes;
  if (demand.config.shard.units != "block") return changes;
  const auto add = [&](double mib) {
    changes.push_back(change(demand, fmt::format("set shard.unit_mib={}", mib)));
    changes.back().demand.config.shard.unit_mib = mib;
  };
  const double set = unit_mib(demand.config, demand.plan.transport, demand.plan.ranks);
  for (double mib = set / 2; mib >= 1; mib /= 2) add(mib);
  if (set > 0) add(0);
  return changes;
}

Changes prefetches(const MemoryDemand& demand) {
  Changes changes;
  for (std::int64_t limit = demand.config.shard.limit - 1; limit >= 1; --limit) {
    changes.push_back(change(demand, fmt::format("set shard.limit={}", limit)));
    changes.back().demand.config.shard.limit = limit;
  }
  if (demand.config.shard.limit > 0) return changes;
  for (std::int64_t depth = demand.config.shard.prefetch - 1; depth >= 0; --depth) {
    changes.push_back(change(demand, fmt::format("set shard.prefetch={}", depth)));
    changes.back().demand.config.shard.prefetch = depth;
  }
  return changes;
}

Changes reshardings(const MemoryDemand& demand) {
  const Strategy strategy = strategy_of(demand.config.shard.strategy);
  const bool is_possible = strategy == Strategy::zero3 || strategy == Strategy::hsdp || strategy == Strategy::nested;
  if (!is_possible || demand.config.shard.reshard_after_forward.is_all()) return {};
  MemoryChange one = change(demand, "set shard.reshard_after_forward=true");
  one.demand.config.shard.reshard_after_forward = true;
  return {one};
}

constexpr const char* kSomeDisk = "disk:FOLDER";

/// True if a role that is kept at `place` may be kept at `to` instead: back on the device, or further away. Without a
/// folder that the configuration names, a disk is for what the host keeps already.
bool may_move(const std::string& place, const std::string& to) {
  if (to == "device") return place != to;
  if (to == "host") return place == "device";
  return place == "host" || (place == "device" && to != kSomeDisk);
}

/// Changes that let something else than the device keep, or give back: one thing, or more. Other memory than the
/// machine's own has to be short for the host to help.
Changes residences(const MemoryDemand& demand, const std::string& to) {
  const Config& config = demand.config;
  const Config::Offload& offload = config.offload;
  const bool goes_away = to != "device";
  if (to == "host" ? demand.gpus == 0 && offload.device_mib == 0 : !goes_away && !offload.uses_host()) return {};
  const bool is_bf16 = config.precision.param == "bf16" && config.precision.validation != "f32";
  if (goes_away && (config.cuda.graph || config.train.average > 0 || optimizer_kind(config).trains_average)) return {};
  using Key = std::pair<const char*, std::string Config::Offload::*>;
  std::vector<Key> keys;
  if (!goes_away || to == "host" || is_bf16) keys.emplace_back("offload.weights", &Config::Offload::weights);
  if (!goes_away || has_moments(config)) keys.emplace_back("offload.moments", &Config::Offload::moments);
  if (to == "host" || !goes_away) keys.emplace_back("offload.gradients", &Config::Offload::gradients);
  if (!goes_away || (to == "host" && accumulates_gradients(config)))
    keys.emplace_back("offload.accumulator", &Config::Offload::accumulator);
  if (!goes_away || (to == "host" && may_recompute_blocks(config.train.recompute)))
    keys.emplace_back("offload.activations", &Config::Offload::activations);
  std::erase_if(keys, [&](const Key& key) { return !may_move(offload.*key.second, to); });
  const auto is_updated_there = [&](const Key& key) {
    return offload.update == "host" && to != "host" && key.second != &Config::Offload::activations &&
           key.second != &Config::Offload::accumulator;
  };
  Changes changes;
  const auto add = [&](std::size_t begin, std::size_t end) {
    std::string text;
    MemoryChange one = change(demand, "");
    for (std::size_t i = begin; i < end; ++i) {
      text += fmt::format("{}{}={}", text.empty() ? "set " : ", ", keys[i].first, to);
      one.demand.config.offload.*keys[i].second = to;
      if (is_updated_there(keys[i])) one.demand.config.offload.update = "device";
    }
    if (one.demand.config.offload.update != offload.update) text += ", offload.update=device";
    one.text = text;
    changes.push_back(std::move(one));
  };
  for (std::size_t i = 0; i < keys.size(); ++i) add(i, i + 1);
  for (std::size_t end = 2; end <= keys.size(); ++end) add(0, end);
  return changes;
}

/// Fewer of the units of which the device keeps what the host does of the others.
Changes resident_units(const MemoryDemand& demand) {
  Changes changes;
  const std::int64_t set = demand.config.offload.resident_units.value;
  if (set == 0 || !demand.config.offload.has_any_of_units()) return changes;
  const std::int64_t all = std::ssize(make_plan(demand.config, demand.plan).units);
  for (std::int64_t units = std::min(set, all) - 1; units >= 0; --units) {
    changes.push_back(change(demand, fmt::format("set offload.resident_units={}", units)));
    changes.back().demand.config.offload.resident_units = {.value = units};
  }
  return changes;
}

/// The copy that a thread writes a checkpoint from.
Changes waits_for_saves(const MemoryDemand& demand) {
  if (!demand.config.checkpoint.background) return {};
  MemoryChange one = change(demand, "set checkpoint.background=false");
  one.demand.config.checkpoint.background = false;
  return {one};
}

Changes to_host(const MemoryDemand& demand) { return residences(demand, "host"); }
Changes to_device(const MemoryDemand& demand) { return residences(demand, "device"); }
Changes to_disk(const MemoryDemand& demand) {
  const Config::Offload& offload = demand.config.offload;
  if (!offload.has_disk()) return residences(demand, kSomeDisk);
  return residences(demand, Config::Offload::disk_of(offload.moments).empty() ? offload.weights : offload.moments);
}

/// True if so many ranks can share the work, and no micro-batch is left empty.
bool is_possible(const MemoryDemand& demand, int ranks) {
  try {
    check_ranks(demand.config, ranks);
    return demand.config.train.global_batch % (demand.config.train.micro_batch * data_shares(demand.config, ranks)) ==
           0;
  } catch (const Error&) {
    return false;
  }
}

void move_to(MemoryDemand& demand, int ranks, int local_ranks) {
  demand.plan.rank = 0;
  demand.plan.ranks = ranks;
  demand.plan.hosts.clear();
  for (int r = 0; r < ranks && ranks > local_ranks; ++r) demand.plan.hosts.push_back(r / local_ranks);
  demand.local_ranks = local_ranks;
  if (demand.gpus > 0 && ranks > 1 && demand.plan.transport == Transport::local)
    demand.plan.transport = Transport::nccl;
}

std::string start(const MemoryDemand& demand, int ranks) {
  const bool is_launched = demand.plan.transport != Transport::local && demand.config.comm.ranks == 1;
  return is_launched ? fmt::format("start {} ranks (mpirun -np {})", ranks, ranks)
                     : fmt::format("set comm.ranks={}", ranks);
}

/// Changes to fewer ranks on one host, which share its memory: what is sharded stays the same, the rest is there once a
/// rank.
Changes fewer_ranks(const MemoryDemand& demand) {
  Changes changes;
  if (demand.plan.ranks != demand.local_ranks) return changes;
  for (int ranks = demand.plan.ranks - 1; ranks > 0; --ranks) {
    if (!is_possible(demand, ranks)) continue;
    changes.push_back(change(demand, start(demand, ranks)));
    move_to(changes.back().demand, ranks, ranks);
  }
  return changes;
}

constexpr int kMostTimes = 16;

Changes more_ranks(const MemoryDemand& demand) {
  Changes changes;
  // One rank on a GPU has no transport either.
  const bool are_threads = demand.plan.transport == Transport::local && demand.gpus == 0;
  if (demand.plan.ranks != demand.local_ranks || are_threads) return changes;
  const int most = demand.gpus > 0 ? demand.gpus : demand.plan.ranks * kMostTimes;
  for (int ranks = demand.plan.ranks + 1; ranks <= most; ++ranks) {
    if (!is_possible(demand, ranks)) continue;
    changes.push_back(change(demand, start(demand, ranks)));
    move_to(changes.back().demand, ranks, ranks);
  }
  return changes;
}

Changes more_hosts(const MemoryDemand& demand) {
  Changes changes;
  const int hosts = demand.plan.ranks / demand.local_ranks;
  for (int more = hosts + 1; more <= hosts * kMostTimes; ++more) {
    const int ranks = more * demand.local_ranks;
    if (!is_possible(demand, ranks)) continue;
    changes.push_back(change(demand, fmt::format("use {} hosts like this one, {} ranks in all", more, ranks)));
    move_to(changes.back().demand, ranks, demand.local_ranks);
    if (demand.gpus == 0)
      changes.back().demand.plan.transport = demand.local_ranks > 1 ? Transport::hier : Transport::mpi;
  }
  return changes;
}

/// "4 ranks need 22.7 GiB on this host"
std::string need_text(const MemoryDemand& demand, const RankBytes& rank_bytes, const MemoryBudget& budget) {
  const bool is_host = budget.of == MemoryBudget::Of::host;
  if (budget.of == MemoryBudget::Of::disk)
    return fmt::format("{} on the disk",
                       demand.local_ranks > 1
                           ? fmt::format("{} ranks need {}", demand.local_ranks,
                                         format_bytes(needed_bytes(demand, rank_bytes, budget)))
                           : "the plan needs " + format_bytes(needed_bytes(demand, rank_bytes, budget)));
  if (budget.is_per_rank)
    return fmt::format("a rank needs {} of the {} memory", format_bytes(needed_bytes(demand, rank_bytes, budget)),
                       is_host ? "host's" : "device's");
  const bool is_shared = needed_bytes(demand, {is_host ? 0 : 1, is_host ? 1 : 0}, budget) > 1;
  return fmt::format("{} {} {}", is_shared ? fmt::format("{} ranks need", demand.local_ranks) : "the plan needs",
                     format_bytes(needed_bytes(demand, rank_bytes, budget)),
                     budget.is_per_process ? "in a process" : "on this host");
}

bool fits(MemoryChange& one, const std::vector<MemoryBudget>& budgets) {
  take_bytes(one);
  return exceeded(one.demand, one.bytes(), budgets) == nullptr;
}

/// The first that fits of a few of which none saves more of everything.
std::optional<MemoryChange> any_that_fits(Changes changes, const std::vector<MemoryBudget>& budgets) {
  const auto found =
      std::find_if(changes.begin(), changes.end(), [&](MemoryChange& one) { return fits(one, budgets); });
  return found == changes.end() ? std::nullopt : std::optional(*found);
}

/// The first of the list that fits: each saves more than the one before.
std::optional<MemoryChange> first_that_fits(Changes changes, const std::vector<MemoryBudget>& budgets) {
  if (changes.empty() || !fits(changes.back(), budgets)) return std::nullopt;
  const auto found =
      std::partition_point(changes.begin(), changes.end() - 1, [&](MemoryChange& one) { return !fits(one, budgets); });
  return *found;
}

}  // namespace

std::optional<MemoryChange> smallest_change(const MemoryDemand& demand, const std::vector<MemoryBudget>& budgets) {
  for (const auto list :
       {recomputations, micro_batches, loss_chunks, unit_sizes, prefetches, reshardings, resident_units}) {
    if (auto found = first_that_fits(list(demand), budgets)) return found;
  }
  for (const auto list : {waits_for_saves, to_device, to_host, to_disk}) {
    if (auto found = any_that_fits(list(demand), budgets)) return found;
  }
  for (const auto list : {fewer_ranks, more_ranks, more_hosts}) {
    if (auto found = first_that_fits(list(demand), budgets)) return found;
  }
  return std::nullopt;
}

MemoryChange least_memory(const MemoryDemand& demand) {
  MemoryChange least = change(demand, "");
  take_bytes(least);
  for (const auto list :
       {recomputations, micro_batches, loss_chunks, unit_sizes, prefetches, reshardings, resident_units, to_host}) {
    Changes changes = list(least.demand);
    if (changes.empty()) continue;
    MemoryChange& last = changes.back();
    take_bytes(last);
    if (last.rank_bytes >= least.rank_bytes) continue;
    const std::string key = last.text.substr(std::string("set ").size());
    last.text = least.text + (least.text.empty() ? "" : ", ") + key;
    least = std::move(last);
  }
  return least;
}

namespace {

std::string advice(const MemoryDemand& demand, const MemoryBudget& budget, const std::vector<MemoryBudget>& budgets) {
  const auto needs_of = [&](const MemoryChange& one, const MemoryBudget& of) {
    return format_bytes(needed_bytes(one.demand, one.bytes(), of));
  };
  const auto needs = [&](const MemoryChange& one) { return needs_of(one, budget); };
  if (const auto found = smallest_change(demand, budgets))
    return fmt::format("{}, which needs {}", found->text, needs(*found));
  const MemoryChange least = least_memory(demand);
  const MemoryBudget* const other = exceeded(least.demand, least.bytes(), budgets);
  if (other == nullptr) return fmt::format("no single change is enough; {} together need {}", least.text, needs(least));
  if (needed_bytes(least.demand, least.bytes(), budget) <= budget.bytes)  // another limit is too low then
    return fmt::format("{} is too low as well, of which {} are needed at least, with {}", other->source,
                       needs_of(least, *other), least.text);
  return fmt::format("{}: the least, {}needs {}",
                     budget.is_per_process ? "raise the limit" : "use a smaller model or more memory",
                     least.text.empty() ? "" : "with " + least.text + ", ", needs(least));
}

}  // namespace

std::string describe_budgets(const MemoryDemand& demand, const RankBytes& rank_bytes,
                             const std::vector<MemoryBudget>& budgets) {
  std::string text;
  for (const MemoryBudget& budget : budgets) {
    const std::int64_t needed = needed_bytes(demand, rank_bytes, budget);
    text += fmt::format("memory: {}, {} may be used ({}){}\n", need_text(demand, rank_bytes, budget),
                        format_bytes(budget.bytes), budget.source, needed > budget.bytes ? ": too much" : "");
  }
  if (const MemoryBudget* const budget = exceeded(demand, rank_bytes, budgets))
    text += "        " + advice(demand, *budget, budgets) + "\n";
  return text;
}

Error memory_refusal(const MemoryDemand& demand, const RankBytes& rank_bytes,
                     const std::vector<MemoryBudget>& budgets) {
  const MemoryBudget* const budget = exceeded(demand, rank_bytes, budgets);
  ZS_CHECK(budget != nullptr, "a run that fits is refused: {} bytes a rank", rank_bytes.device);
  return Error(ExitCode::out_of_memory,
               fmt::format("{}, {} may be used", need_text(demand, rank_bytes, *budget), format_bytes(budget->bytes)),
               budget->source, advice(demand, *budget, budgets));
}

}  // namespace zs
