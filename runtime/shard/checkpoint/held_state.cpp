#include "runtime/shard/checkpoint/held_state.h"

#include <algorithm>
#include <utility>

#include "runtime/base/usage_error.h"

namespace zs {
namespace {

HeldTensor::Piece piece_of(const ShardSegment& segment, const Buffer& data) {
  const std::int64_t runs = segment.runs();
  return {{0, segment.view_offset, segment.run, runs, runs > 1 ? segment.stride : 0}, data};
}

/// Piece of a state that has an element for a block of the parameter's, whole blocks; ranks that share one both have
/// it.
HeldTensor::Piece blocks_piece_of(const ShardSegment& segment, const Buffer& data) {
  return {{0, first_block_of({segment.view_offset, segment.run, segment.stride}), data.elems, 1, 0}, data};
}

Shape shape_of(const FlatView& parameter, const StateForm& form) {
  return form.block_elems == 1 ? parameter.whole_shape()
                               : Shape{(parameter.numel + form.block_elems - 1) / form.block_elems};
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

struct StatePlace {
  std::size_t unit, which;
};

/// Between a state that some parameters have, wherever it is kept, and a buffer as the masters lie.
void copy_parts(Executor& executor, const Optimizer& optimizer, const StatePlace& place, const Buffer& held,
                bool to_held) {
  const Context& context = executor.context();
  Buffer all = optimizer.kept_state(place.which, place.unit);
  if (all.empty()) return;
  HostLink::Window window;
  if (optimizer.is_on_host(place.unit)) {
    window = executor.link().load(executor.units()[place.unit].name, {all});
    context.stream().wait(window.arrived);
    all = window[0];
  }
  const std::vector<ShardSegment> segments = executor.units()[place.unit].held_segments();
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const Buffer packed = optimizer.state_of(place.which, place.unit, i, all);
    if (packed.empty()) continue;
    const Buffer part = held.slice(segments[i].shard_offset, segments[i].count), in = to_held ? packed : part,
                 out = to_held ? part : packed;
    context.launch({"copy_state", {in}, {out}},
                   [&kernels = context.kernels(), in, out](ExecContext& exec) { kernels.copy(exec, out, in); });
  }
  to_held ? HostLink::drop(std::move(window), context.stream()) : executor.link().store(std::move(window));
}

HeldKind spread(Executor& executor, const Optimizer& optimizer, std::size_t unit, std::size_t which) {
  const Context& context = executor.context();
  const UnitLayout& layout = *executor.units()[unit].layout;
  Memory copy = context.pool().acquire(layout.held_elems() * size_of(DType::f32), context.stream(), "moments");
  const Buffer held = copy.buffer(DType::f32, layout.held_elems());
  context.launch({"zero_state", {}, {held}},
                 [&kernels = context.kernels(), held](ExecContext& exec) { kernels.zero(exec, held); });
  copy_parts(executor, optimizer, {unit, which}, held, true);
  std::vector<bool> has;
  for (std::size_t i = 0; i < layout.views().size(); ++i) has.push_back(optimizer.has_state(which, unit, i));
  return {optimizer.state_names()[which], {HeldShards::Role::moment, held}, std::move(has), std::move(copy)};
}

}  // namespace

HeldTensor::Piece whole_piece(const Buffer& data) { return {{0, 0, data.elems, 1, 0}, data}; }

std::vector<HeldKind> unit_state(Executor& executor, const Optimizer* optimizer, std::size_t unit) {
  std::vector<HeldKind> kinds;
  kinds.push_back({kMasterKind, HeldShards::masters(executor.units()[unit])});
  const bool has_moments = optimizer != nullptr && !executor.units()[unit].is_frozen;
  for (std::size_t i = 0; has_moments && i < optimizer->state_names().size(); ++i) {
    kinds.push_back(optimizer->is_of_all(i, unit)
                        ? HeldKind{optimizer->state_names()[i],
                                   {HeldShards::Role::moment, optimizer->state(i, unit), optimizer->is_on_host(unit)}}
                        : spread(executor, *optimizer, unit, i));
  }
  return kinds;
}

void store_unit_state(Executor& executor, const Optimizer& optimizer, std::size_t unit, const HeldKind& state) {
  if (!state.copy) return;
  const auto& names = optimizer.state_names();
  const auto which = static_cast<std::size_t>(std::find(names.begin(), names.end(), state.kind) - names.begin());
  copy_parts(executor, optimizer, {unit, which}, state.shards.held, false);
}

void check_plain_state(const Optimizer& optimizer, const char* what) {
  if (optimizer.has_plain_state()) return;
  throw UsageError(fmt::format("{} of {}, whose state is not a number of f32 for each element", what, optimizer.kind()),
                   "pass with_optimizer = false, or save and load a checkpoint");
}

void check_not_partitioned(const Executor& executor, const char* what) {
  for (const FlatParameter& unit : executor.units()) {
    if (!unit.placement->is_partitioned()) continue;
    throw UsageError(fmt::format("{} of unit {}, of which this rank owns a part", what, unit.name),
                     "save a checkpoint, which has the whole, and load it or export it");
  }
}

std::vector<HeldTensor> held_tensors(const Executor& executor, const Optimizer* optimizer, bool with_frozen) {
  std::vector<HeldTensor> tensors;
  for (std::size_t unit = 0; unit < executor.units().size(); ++unit) {
    const FlatParameter& flat = executor.units()[unit];
    if (flat.is_frozen && !with_frozen) continue;
    const std::vector<ShardSegment> segments = flat.held_segments();
    const auto add = [&](std::size_t view, const std::string& kind, const StateForm& form, const auto& data_of) {
      const FlatView& parameter = flat.layout->views()[view];
      HeldTensor held{{parameter.name, kind, form.dtype, shape_of(parameter, form)}, {}};
      for (std::size_t i = 0; i < segments.size(); ++i) {
        if (segments[i].view != view) continue;
        held.pieces.push_back(form.block_elems == 1 ? piece_of(segments[i], data_of(i))
                                                    : blocks_piece_of(segments[i], data_of(i)));
      }
      // Alike on every rank: of the other parts of the parameter, which other ranks own, there are no pieces here.
      for (int part = 0; part < parameter.part.count; ++part) {
        held.tensor.part = parameter.part;
        held.tensor.part.index = part;
        tensors.push_back(part == parameter.part.index ? held : HeldTensor{held.tensor, {}});
      }
    };
    for (std::size_t view = 0; view < flat.layout->views().size(); ++view) {
      add(view, kMasterKind, {},
          [&](std::size_t i) { return flat.weights_buffer().slice(segments[i].shard_offset, segments[i].count); });
      for (std::size_t which = 0; optimizer != nullptr && which < optimizer->state_names().size(); ++which) {
        if (optimizer->has_state(which, unit, view))
          add(view, optimizer->state_names()[which], optimizer->form(which),
              [&](std::size_t i) { return optimizer->state_of(which, unit, i); });
      }
    }
  }
  for (const Parameter* parameter : executor.ignored()) tensors.push_back(held_whole(*parameter));
  return tensors;
}

}  // namespace zs
