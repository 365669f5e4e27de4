#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/shard/checkpoint/checkpoint.h"
#include "runtime/shard/checkpoint/held_state.h"

namespace zs {

/// Options of a state by name, alike on every rank.
struct StateOptions {
  bool whole = false;    ///< whole tensors, gathered unit by unit; else this rank's parts, without communication
  bool on_host = false;  ///< copies in the host's memory; with `whole` no more than one unit at a time is on the device
  /// Rank that alone gets the tensors; goes with `whole`: the other ranks get tensors without pieces, and hold no more
  /// than their shards.
  std::optional<int> only_rank = {};
  bool with_frozen = true;     ///< parameters that are not trained too
  bool with_optimizer = true;  ///< the optimizer's, and the numbers of updates
};

/// The state of training in memory, by parameter and kind (kMasterKind, or one of Optimizer::state_names()), f32: to
/// look at, to keep, or to load again, by another model, cut or number of ranks too. Owns what its pieces are in, but
/// for views, of which the executor and the optimizer are the owners: those change with every step. The tensors may be
/// anybody's: to load, fill them from wherever values are.
struct StateByName {
  std::vector<HeldTensor> tensors;                ///< in the order of the model; ignored parameters last
  std::map<std::string, std::int64_t> updates;    ///< for each parameter: the number of steps that have updated it
  std::vector<std::shared_ptr<const void>> keep;  ///< owners of memory of the host
  std::vector<Memory> memory;                     ///< memory of the device

  /// Null where there is none.
  const HeldTensor* find(const std::string& parameter, const std::string& kind = kMasterKind) const;
};

/// The state as it is. Collective with `whole`; blocks with `on_host`, and for the optimizer's. UsageError within a
/// micro-batch or an UnshardScope, and for `only_rank` without `whole`. Without `on_host` and `whole`: views of the
/// shards, but copies, on the host, of what a disk keeps and of what is not held in f32.
StateByName state_by_name(const TrainingState& state, const StateOptions& options = {});

/// Options of a load, alike on every rank.
struct LoadOptions {
  bool strict = true;  ///< the names are those of the state, all of them and no others; else what is there is loaded
  /// Rank that alone has all tensors, whole, and the others get theirs of it; what they pass is not looked at.
  std::optional<int> only_rank = {};
  bool with_frozen = true;     ///< a strict load wants frozen parameters too
  bool with_optimizer = true;  ///< the optimizer's state and numbers of updates are loaded
};

/// Names that a load that is not strict has left out.
struct StateDifferences {
  std::vector<std::string> missing, unexpected;  ///< "layer0.weight (adamw.m)"
};

/// Fills the shards from tensors that are whole, or cut in any way as long as a rank is given what it holds: on the
/// host or on the device. Returns, on every rank, what a load that is not strict has left out. Collective; blocks; call
/// between steps. Throws AgreedError before anything is changed: a name that is missing or unexpected, a shape or dtype
/// that differs, elements that are not there, ranks that are given different tensors.
StateDifferences load_by_name(const TrainingState& state, const StateByName& from, const LoadOptions& options = {});

}  // namespace zs
