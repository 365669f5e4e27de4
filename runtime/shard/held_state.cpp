#include "runtime/shard/held_state.h"

#include <utility>

#include "runtime/base/usage_error.h"

namespace zs {
namespace {

HeldTensor::Piece piece_of(const ShardSegment& segment, const Buffer& shard) {
  const std::int64_t runs = segment.runs();
  return {{0, segment.view_offset, segment.run, runs, runs > 1 ? segment.stride : 0},
          shard.slice(segment.shard_offset, segment.count)};
}

/// Every rank holds it whole, and whoever gave it the value keeps what else there is to know of it.
HeldTensor held_whole(const Parameter& ignored) {
  const Buffer value = ignored.value();
  if (value.dtype != DType::f32) {
    throw UsageError(
        fmt::format("the ignored parameter {} is {}: the state is f32", ignored.name(), name_of(value.dtype)),
        "give it an f32 value");
  }
  return {{ignored.name(), kMasterKind, value.dtype, ignored.shape()}, {whole_piece(value)}};
}

}  // namespace

HeldTensor::Piece whole_piece(const Buffer& data) { return {{0, 0, data.elems, 1, 0}, data}; }

std::vector<std::pair<std::string, HeldShards>> unit_state(const Executor& executor, const Optimizer* optimizer,
                                                           std::size_t unit) {
  std::vector<std::pair<std::string, HeldShards>> kinds = {{kMasterKind, HeldShards::masters(executor.units()[unit])}};
  for (std::size_t i = 0; optimizer != nullptr && i < optimizer->state_names().size(); ++i)
    kinds.emplace_back(optimizer->state_names()[i],
                       HeldShards{HeldShards::Role::moment, optimizer->state(i, unit), optimizer->is_on_host(unit)});
  return kinds;
}

std::vector<HeldTensor> held_tensors(const Executor& executor, const Optimizer* optimizer) {
  std::vector<HeldTensor> tensors;
  for (std::size_t unit = 0; unit < executor.units().size(); ++unit) {
    const FlatParameter& flat = executor.units()[unit];
    const std::vector<ShardSegment> segments = flat.held_segments();
    const auto kinds = unit_state(executor, optimizer, unit);
    for (std::size_t view = 0; view < flat.layout->views().size(); ++view) {
      const FlatView& parameter = flat.layout->views()[view];
      for (const auto& [kind, shards] : kinds) {
        HeldTensor held{{parameter.name, kind, DType::f32, parameter.shape}, {}};
        for (const ShardSegment& segment : segments) {
          if (segment.view == view) held.pieces.push_back(piece_of(segment, shards.held));
        }
        tensors.push_back(std::move(held));
      }
    }
  }
  for (const Parameter* parameter : executor.ignored()) tensors.push_back(held_whole(*parameter));
  return tensors;
}

}  // namespace zs
