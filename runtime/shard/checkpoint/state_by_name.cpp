#include "runtime/shard/checkpoint/state_by_name.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/host_view.h"

namespace zs {
namespace {

/// Takes the state into `result`.
class Reader {
 public:
  Reader(const TrainingState& state, const StateOptions& options, StateByName& result)
      : state_(state),
        options_(options),
        optimizer_(options.with_optimizer ? &state.optimizer : nullptr),
        result_(result) {}

  void run() {
    options_.whole ? read_whole() : read_shards();
    std::erase_if(result_.tensors, [&](const HeldTensor& held) { return !is_wanted(held.tensor.parameter); });
    if (optimizer_ != nullptr) read_updates();
  }

 private:
  bool is_seen() const { return !options_.only_rank || *options_.only_rank == state_.executor.rank(); }
  bool is_wanted(const std::string& name) {
    if (parameters_.empty()) {
      for (const FlatParameter& unit : state_.executor.units())
        for (const Parameter* parameter : unit.parameters) parameters_[parameter->name()] = parameter;
      for (const Parameter* parameter : state_.executor.ignored()) parameters_[parameter->name()] = parameter;
    }
    return options_.with_frozen || parameters_.at(name)->is_trainable();
  }

  void read_shards() {
    state_.executor.link().settle(state_.executor.context().stream());
    result_.tensors = held_tensors(state_.executor, optimizer_);
    const HostLink& link = state_.executor.link();
    if (!link.disk_bytes().empty()) state_.executor.context().device().synchronize();
    for (HeldTensor& held : result_.tensors)
      for (HeldTensor::Piece& piece : held.pieces)
        if (options_.on_host || link.is_on_disk(piece.data) || piece.data.dtype == DType::bf16)
          piece.data = on_host(piece.data);
  }

  /// A unit after the other, so that with `on_host` the next has the memory of the last.
  void read_whole() {
    Executor& executor = state_.executor;
    for (std::size_t number = 0; number < executor.units().size(); ++number) {
      FlatParameter& unit = executor.units()[number];
      const auto& views = unit.layout->views();
      std::vector<std::vector<HeldTensor>> of_views(views.size());  // a parameter's kinds beside each other
      for (const HeldKind& state : unit_state(executor, optimizer_, number)) {
        WholeUnit whole = options_.only_rank ? executor.transfer().gather_to(unit, state.shards, *options_.only_rank)
                                             : executor.transfer().gather(unit, state.shards);
        for (std::size_t i = 0; i < views.size(); ++i) {
          if (!state.is_of(i)) continue;
          const CheckpointTensor named{views[i].name, state.kind, DType::f32, views[i].shape};
          of_views[i].push_back(tensor(named, whole.of(*unit.layout, views[i])));
        }
        keep(std::move(whole));
      }
      for (auto& tensors : of_views) std::move(tensors.begin(), tensors.end(), std::back_inserter(result_.tensors));
    }
    for (const Parameter* parameter : executor.ignored()) {
      result_.tensors.push_back(tensor({parameter->name(), kMasterKind, DType::f32, parameter->shape()},
                                       is_seen() ? parameter->value() : Buffer{}));
    }
  }

  HeldTensor tensor(CheckpointTensor named, const Buffer& value) {
    HeldTensor held{std::move(named), {}};
    if (is_seen()) held.pieces.push_back(whole_piece(options_.on_host ? on_host(value) : value));
    return held;
  }

  /// Keeps what was gathered; it is compute's.
  void keep(WholeUnit whole) {
    for (Memory* memory : {&whole.sharded, &whole.whole}) {
      if (!*memory) continue;
      if (options_.on_host) memory->release(state_.executor.context().stream());
      if (!options_.on_host) result_.memory.push_back(std::move(*memory));
    }
  }

  Buffer on_host(const Buffer& from) {
    if (from.elems == 0) return {};
    auto values = std::make_shared<std::vector<float>>(static_cast<std::size_t>(from.elems));
    if (const HostLink& link = state_.executor.link(); link.is_on_disk(from)) {
      link.read(from, values->data());
    } else {
      const HostView view(state_.executor.context(), state_.executor.context().stream(), from);
      if (from.dtype == DType::bf16)
        *values = std::vector<float>(view.as<BFloat16>(), view.as<BFloat16>() + from.elems);
      else
        std::copy_n(view.as<float>(), from.elems, values->data());
    }
    result_.keep.push_back(values);
    return {values->data(), from.elems, DType::f32, DeviceKind::cpu};
  }

  void read_updates() {
    const UpdateCounts::Progress progress = state_.optimizer.counts().read();
    for (std::size_t unit = 0; unit < state_.executor.units().size(); ++unit) {
      const auto& views = state_.executor.units()[unit].layout->views();
      for (std::size_t i = 0; i < views.size(); ++i)
        if (is_wanted(views[i].name))
          result_.updates[views[i].name] = static_cast<std::int64_t>(progress[unit][i].updates);
    }
  }

  TrainingState state_;
  StateOptions options_;
  const Optimizer* optimizer_;
  StateByName& result_;
  std::unordered_map<std::string, const Parameter*> parameters_;
};

}  // namespace

const HeldTensor* StateByName::find(const std::string& parameter, const std::string& kind) const {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const HeldTensor& held) {
    return held.tensor.parameter == parameter && held.tensor.kind == kind;
  });
  return found == tensors.end() ? nullptr : &*found;
}

StateByName state_by_name(const TrainingState& state, const StateOptions& options) {
  if (options.only_rank && !options.whole)
    throw UsageError("state_by_name() of one rank's shards", "pass whole = true, or leave only_rank out");
  if (options.only_rank && (*options.only_rank < 0 || *options.only_rank >= state.executor.ranks()))
    throw UsageError(fmt::format("state_by_name() for rank {} of {}", *options.only_rank, state.executor.ranks()),
                     "name a rank that is");
  if (options.with_optimizer) check_plain_state(state.optimizer, "state_by_name()");
  check_not_partitioned(state.executor, "state_by_name()");
  state.executor.step().check_no_micro_batch("state_by_name()");
  state.executor.step().check_not_swapped("state_by_name()");
  state.executor.deferred_updates().settle();
  StateByName result;
  Reader(state, options, result).run();
  return result;
}

}  // namespace zs
