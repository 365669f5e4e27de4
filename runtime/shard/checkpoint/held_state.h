#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/shard/checkpoint/checkpoint_manifest.h"
#include "runtime/shard/checkpoint/checkpoint_plan.h"
#include "runtime/shard/optimizers/optimizer.h"

namespace zs {

/// Kind of a tensor of the state that is its parameter's f32 weights; other kinds are Optimizer::state_names().
inline constexpr const char* kMasterKind = "master";

/// A tensor of the state, and the parts of it that this rank holds, in the order of elements. They are cut on the same
/// dim. Of moments in 8 bits there are u8 codes, and scales, one for each block of the parameter. Parts of a frozen
/// parameter's f32 weights may be held in bf16.
struct HeldTensor {
  struct Piece {
    ElementRange range;  ///< elements of this tensor, as if it were the first
    Buffer data;         ///< run after run

    Buffer run(std::int64_t number) const { return data.slice(number * range.count, range.count); }
  };
  CheckpointTensor tensor;
  std::vector<Piece> pieces;
};

/// The whole of it.
HeldTensor::Piece whole_piece(const Buffer& data);

/// Shards that a unit has of one kind, as a ScopeTransfer takes them.
struct HeldKind {
  std::string kind;
  HeldShards shards;
  std::vector<bool> has = {};  ///< by parameter; none: all have it
  Memory copy = {};  ///< copy of a state that some parameters have: where the shards are, zeros for the others

  bool is_of(std::size_t parameter) const { return has.empty() || has.at(parameter); }
};

/// State of a unit, by kind; without an optimizer that of the weights. What are copies is enqueued.
std::vector<HeldKind> unit_state(Executor& executor, const Optimizer* optimizer, std::size_t unit);
/// Enqueues the writing of what became of the shards, where they are a copy.
void store_unit_state(Executor& executor, const Optimizer& optimizer, std::size_t unit, const HeldKind& state);

/// UsageError, by `what`, where the optimizer has state that is not f32, element by element: checkpoints alone hold it.
void check_plain_state(const Optimizer& optimizer, const char* what);

/// UsageError, by `what`, where ranks own parts of parameters: checkpoints alone put them together.
void check_not_partitioned(const Executor& executor, const char* what);

/// The state by parameter and kind, a tensor for each part of a parameter that is partitioned: of units, in their
/// order, and after them the ignored parameters, of which there are the values alone. Views of the shards. Without an
/// optimizer: of the weights. Without the weights of frozen units, unless `with_frozen`. UsageError where an ignored
/// parameter is not f32.
std::vector<HeldTensor> held_tensors(const Executor& executor, const Optimizer* optimizer, bool with_frozen = true);

}  // namespace zs
