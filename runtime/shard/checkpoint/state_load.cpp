#include "runtime/shard/checkpoint/state_by_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/host_view.h"

namespace zs {
namespace {

using Key = std::pair<std::string, std::string>;  // parameter, kind
Key key_of(const HeldTensor& held) { return {held.tensor.parameter, held.tensor.kind}; }
std::string text_of(const Key& key) { return fmt::format("{} ({})", key.first, key.second); }

/// Index of the elements of a given tensor, by their first.
class Index {
 public:
  explicit Index(const HeldTensor& given) {
    for (const HeldTensor::Piece& piece : given.pieces)
      for (std::int64_t run = 0; run < piece.range.runs; ++run)
        parts_[piece.range.begin + run * piece.range.stride] = piece.run(run);
  }
  /// Calls use(offset, part) for the parts that make up elements [begin, begin + count); false where one is not there.
  template <class Use>
  bool for_each_part(std::int64_t begin, std::int64_t count, const Use& use) const {
    for (std::int64_t at = begin; at < begin + count;) {
      auto part = parts_.upper_bound(at);
      if (part == parts_.begin()) return false;
      --part;
      const std::int64_t into = at - part->first, elems = std::min(part->second.elems - into, begin + count - at);
      if (elems <= 0) return false;
      use(at - begin, part->second.slice(into, elems));
      at += elems;
    }
    return true;
  }

 private:
  std::map<std::int64_t, Buffer> parts_;
};

/// Stores to what the host keeps for a GPU, or on a disk.
void store_now(Executor& executor, const Buffer& to, const Buffer& part) {
  const HostView values(executor.context(), executor.context().stream(), part);
  if (executor.link().is_on_disk(to)) return executor.link().write(to, values.as<float>());
  std::copy_n(values.as<float>(), part.elems, static_cast<float*>(to.data));
}

/// Stores f32 to what is held in bf16.
void round_now(const Context& context, const Buffer& to, const Buffer& part) {
  const HostView values(context, context.stream(), part);
  std::vector<BFloat16> rounded(values.as<float>(), values.as<float>() + part.elems);
  context.launch({"load_state", {}, {to}}, upload_of(context.kernels(), to, std::move(rounded)));
}

/// Enqueues the filling of `out` with a given tensor's elements from `begin` on; or, without an executor, says whether
/// they are there.
bool fill(Executor* executor, const Index& index, std::int64_t begin, const Buffer& out) {
  return index.for_each_part(begin, out.elems, [&](std::int64_t offset, const Buffer& part) {
    if (executor == nullptr) return;
    const Context* const context = &executor->context();
    const Buffer to = out.slice(offset, part.elems);
    if (to.dtype == DType::bf16) return round_now(*context, to, part);
    if (executor->link().is_on_disk(to)) return store_now(*executor, to, part);
    const bool is_on_gpu = to.device == DeviceKind::cuda;
    if (is_on_gpu && part.device == DeviceKind::cpu) return upload_now(*context, to, part.data);
    if (!is_on_gpu && context->device().kind() == DeviceKind::cuda) return store_now(*executor, to, part);
    // Memory of another device is the caller's, who keeps it until the load is over.
    context->launch({"load_state", is_on_gpu ? std::vector{part} : std::vector<Buffer>{}, {to}},
                    [&kernels = context->kernels(), to, part, is_on_gpu](ExecContext& exec) {
                      is_on_gpu ? kernels.copy(exec, to, part) : kernels.upload(exec, to, part.data);
                    });
  });
}

/// Fills all that a rank holds of the tensor.
bool fill(Executor* executor, const Index& index, const HeldTensor& held) {
  for (const HeldTensor::Piece& piece : held.pieces)
    for (std::int64_t run = 0; run < piece.range.runs; ++run)
      if (!fill(executor, index, piece.range.begin + run * piece.range.stride, piece.run(run))) return false;
  return true;
}

/// A load on its way.
class Loader {
 public:
  Loader(const TrainingState& state, const StateByName& from, const LoadOptions& options)
      : state_(state),
        from_(from),
        options_(options),
        held_(held_tensors(state.executor, options.with_optimizer ? &state.optimizer : nullptr)) {
    for (const FlatParameter& unit : state.executor.units())
      for (const Parameter* parameter : unit.parameters) add(*parameter);
    for (const Parameter* parameter : state.executor.ignored()) add(*parameter);
    if (!is_source()) return;
    for (const HeldTensor& tensor : from.tensors) given_[key_of(tensor)] = &tensor;
  }

  StateDifferences run() {
    share(root());
    together(state_.world, [&] { check(); });
    state_.executor.wait_readers();
    options_.only_rank ? scatter(*options_.only_rank) : copy();
    if (state_.executor.keeps_on_host()) state_.executor.context().device().synchronize();
    set_updates();
    state_.executor.masters_loaded();
    state_.executor.context().device().synchronize();
    return differences();
  }

 private:
  void add(const Parameter& parameter) { parameters_.emplace(parameter.name(), &parameter); }
  int root() const { return options_.only_rank.value_or(0); }
  bool is_source() const { return !options_.only_rank || state_.executor.rank() == *options_.only_rank; }
  bool is_given(const HeldTensor& held) const { return given_.contains(key_of(held)); }

  /// Hash of a tensor that is given whole and in one piece; 0: it is not.
  std::int64_t hash_of(const HeldTensor& held) const {
    const auto given = given_.find(key_of(held));
    if (options_.only_rank || given == given_.end() || given->second->pieces.size() != 1) return 0;
    const HeldTensor::Piece& piece = given->second->pieces.front();
    if (piece.data.elems != held.tensor.shape.numel()) return 0;
    const Context& context = state_.executor.context();
    return WriteCheck::hash_of(HostView(context, context.stream(), piece.data).buffer()) | 1;
  }

  /// Every rank learns which tensors rank `root` is given, and its numbers of updates, -1 where there is none; and of
  /// tensors that are whole on every rank whether they are the same.
  void share(int root) {
    Context& context = state_.executor.context();
    std::vector<std::int64_t> own;
    for (const HeldTensor& held : held_) own.push_back(std::int64_t{is_given(held)});
    for (const auto& [name, parameter] : parameters_) {
      const auto updates = from_.updates.find(name);
      own.push_back(updates == from_.updates.end() ? -1 : updates->second);
    }
    const std::size_t hashes = own.size();
    for (const HeldTensor& held : held_) own.push_back(hash_of(held));
    if (own.empty()) return;
    const std::int64_t count = std::ssize(own);
    const Memory memory = context.pool().acquire(count * size_of(DType::i64), context.stream(), "scalars");
    const Buffer numbers = memory.buffer(DType::i64, count);
    context.launch({"given_state", {}, {numbers}}, upload_of(context.kernels(), numbers, own));
    if (state_.executor.ranks() > 1)
      state_.executor.compute_comm().broadcast(context.stream(), "given_state", numbers, root);
    const HostView view(context, context.stream(), numbers);
    shared_.assign(view.as<std::int64_t>(), view.as<std::int64_t>() + count);
    if (!is_source()) return;
    for (std::size_t i = 0; i < own.size(); ++i) {
      if (own[i] == shared_[i]) continue;
      if (i < hashes) is_alike_ = false;
      if (i >= hashes && own[i] != 0 && shared_[i] != 0 && differs_.empty())
        differs_ = text_of(key_of(held_[i - hashes]));
    }
  }
  bool is_shared(std::size_t tensor) const { return shared_.at(tensor) != 0; }

  bool is_wanted(const HeldTensor& held) const {
    return options_.with_frozen || parameters_.at(held.tensor.parameter)->is_trainable();
  }

  StateDifferences differences() const {
    StateDifferences found;
    std::set<Key> known;
    for (std::size_t i = 0; i < held_.size(); ++i) {
      known.insert(key_of(held_[i]));
      if (!is_shared(i) && is_wanted(held_[i])) found.missing.push_back(text_of(key_of(held_[i])));
    }
    for (const auto& [key, given] : given_) {
      const bool is_left_out = !options_.with_optimizer && key.second != kMasterKind;
      if (!known.contains(key) && !is_left_out) found.unexpected.push_back(text_of(key));
    }
    return found;
  }

  void check() const {
    if (!is_source()) return;
    const auto refuse = [](const std::string& what, const char* what_to_do) {
      throw UsageError("load_by_name(): " + what, what_to_do);
    };
    if (!is_alike_)
      refuse(fmt::format("rank {} is given other tensors than rank 0", state_.executor.rank()),
             "give every rank the same names");
    if (!differs_.empty())
      refuse(fmt::format("rank {} is given other values of {} than rank 0", state_.executor.rank(), differs_),
             "give every rank the same, or pass only_rank");
    for (const HeldTensor& held : held_) {
      const auto given = given_.find(key_of(held));
      if (given == given_.end()) continue;
      const auto& [tensor, pieces] = *given->second;
      const std::string name = text_of(given->first);
      if (tensor.shape != held.tensor.shape)
        refuse(fmt::format("{} is given as {}, and is {}", name, tensor.shape.str(), held.tensor.shape.str()),
               "give it its own shape");
      for (const HeldTensor::Piece& piece : pieces)
        if (piece.data.dtype != DType::f32)
          refuse(fmt::format("{} is given as {}", name, name_of(piece.data.dtype)), "give it as f32");
      const Index index(*given->second);
      const Buffer all{nullptr, held.tensor.shape.numel(), DType::f32, DeviceKind::cpu};
      if (!(options_.only_rank ? fill(nullptr, index, 0, all) : fill(nullptr, index, held)))
        refuse(fmt::format("elements of {} are not given", name),
               options_.only_rank ? "give it whole" : "give it whole, or what the rank holds");
    }
    if (options_.strict) check_names();
  }

  void check_names() const {
    constexpr std::size_t kMostNamed = 5;
    const auto [missing, unexpected] = differences();
    std::vector<std::string> all;
    for (const std::string& name : missing) all.push_back(name + " is missing");
    for (const std::string& name : unexpected) all.push_back(name + " is not in the model");
    if (options_.with_optimizer) {
      for (std::size_t unit = 0; unit < state_.executor.units().size(); ++unit)
        for (const FlatView& view : state_.executor.units()[unit].layout->views())
          if (!from_.updates.contains(view.name) && (options_.with_frozen || parameters_.at(view.name)->is_trainable()))
            all.push_back(view.name + " has no number of updates");
    }
    if (all.empty()) return;
    const std::size_t more = all.size() - std::min(all.size(), kMostNamed);
    all.resize(all.size() - more);
    throw UsageError(
        fmt::format("load_by_name(): {}{}", fmt::join(all, "; "), more > 0 ? fmt::format("; and {} more", more) : ""),
        "give the state of this model, or pass strict = false");
  }

  void copy() const {
    state_.executor.link().settle(state_.executor.context().stream());
    if (!state_.executor.link().disk_bytes().empty()) state_.executor.context().device().synchronize();
    for (const HeldTensor& held : held_)
      if (const auto given = given_.find(key_of(held)); given != given_.end())
        fill(&state_.executor, Index(*given->second), held);
  }

  /// Unit by unit: the root has it whole, fills in what it is given, and every rank gets its part.
  void scatter(int root) {
    ScopeTransfer& transfer = state_.executor.transfer();
    std::map<Key, bool> shared;
    for (std::size_t i = 0; i < held_.size(); ++i) shared[key_of(held_[i])] = is_shared(i);
    for (std::size_t number = 0; number < state_.executor.units().size(); ++number) {
      FlatParameter& unit = state_.executor.units()[number];
      for (const HeldKind& state :
           unit_state(state_.executor, options_.with_optimizer ? &state_.optimizer : nullptr, number)) {
        const auto is_given = [&](const FlatView& view) {
          const auto found = shared.find({view.name, state.kind});
          return found != shared.end() && found->second;
        };
        if (std::none_of(unit.layout->views().begin(), unit.layout->views().end(), is_given)) continue;
        const WholeUnit whole = transfer.gather_to(unit, state.shards, root);
        for (const FlatView& view : unit.layout->views())
          if (whole && is_given(view))
            fill(&state_.executor, Index(*given_.at({view.name, state.kind})), 0, whole.of(*unit.layout, view));
        transfer.scatter(unit, state.shards, whole, root);
        store_unit_state(state_.executor, state_.optimizer, number, state);
      }
    }
    for (const Parameter* parameter : state_.executor.ignored()) {
      const Key key{parameter->name(), kMasterKind};
      if (!shared.at(key)) continue;
      if (is_source()) fill(&state_.executor, Index(*given_.at(key)), 0, parameter->value());
      state_.executor.compute_comm().broadcast(state_.executor.context().stream(), parameter->name(),
                                               parameter->value(), root);
    }
  }

  void set_updates() const {
    if (!options_.with_optimizer) return;
    std::map<std::string, std::int64_t> updates;
    std::size_t at = held_.size();
    for (const auto& [name, parameter] : parameters_) updates[name] = shared_.at(at++);
    UpdateCounts::Progress progress = state_.optimizer.counts().read();
    for (std::size_t unit = 0; unit < state_.executor.units().size(); ++unit) {
      const auto& views = state_.executor.units()[unit].layout->views();
      for (std::size_t i = 0; i < views.size(); ++i)
        if (const std::int64_t count = updates.at(views[i].name); count >= 0)
          progress[unit][i] = {.updates = static_cast<double>(count), .squared_lr = 0};
    }
    state_.optimizer.counts().set(progress);
  }

  TrainingState state_;
  const StateByName& from_;
  LoadOptions options_;
  std::vector<HeldTensor> held_;
  std::map<std::string, const Parameter*> parameters_;
  std::map<Key, const HeldTensor*> given_;
  std::vector<std::int64_t> shared_;  // by rank `root`, of held_ and after them of parameters_
  bool is_alike_ = true;
  std::string differs_;  // a tensor that is whole here and on rank 0, with other values
};

}  // namespace

StateDifferences load_by_name(const TrainingState& state, const StateByName& from, const LoadOptions& options) {
  if (options.only_rank && (*options.only_rank < 0 || *options.only_rank >= state.executor.ranks()))
    throw UsageError(fmt::format("load_by_name() from rank {} of {}", *options.only_rank, state.executor.ranks()),
                     "name a rank that is");
  if (options.with_optimizer) check_plain_state(state.optimizer, "load_by_name()");
  check_not_partitioned(state.executor, "load_by_name()");
  state.executor.step().check_between_steps("load_by_name()");
  state.executor.check_all_sharded();
  return Loader(state, from, options).run();
}

}  // namespace zs
