#include "runtime/shard/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <set>

#include "runtime/base/usage_error.h"
#include "runtime/shard/checkpoint/checkpoint_updates.h"
#include "runtime/shard/checkpoint/held_state.h"
#include "runtime/tensor/host_view.h"

namespace zs {
namespace {

/// Checks the state: without it an optimizer goes on as if training began, so what it does not know is refused too.
void check_state(const CheckpointReader& reader, const std::vector<HeldTensor>& tensors) {
  std::set<std::string> saved, own;
  for (const CheckpointTensor& tensor : reader.manifest().tensors)
    if (tensor.kind != kMasterKind) saved.insert(tensor.kind);
  for (const auto& [tensor, pieces] : tensors)
    if (tensor.kind != kMasterKind) own.insert(tensor.kind);
  if (saved == own) return;
  const auto list = [](const std::set<std::string>& names) {
    return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
  };
  throw Error(ExitCode::checkpoint,
              fmt::format("the checkpoint has the state of another optimizer: {}, here {}", list(saved), list(own)),
              reader.folder(),
              "load it with the optimizer that it was saved with, or the weights alone by load_weights()");
}

/// Differences between a checkpoint's tensors, those of the kinds that are wanted, and the model's; empty when there
/// are none.
std::string differences(const CheckpointReader& reader, const std::vector<HeldTensor>& tensors) {
  constexpr std::size_t kMostNamed = 5;
  std::vector<std::string> found;
  std::set<std::pair<std::string, std::string>> known;
  std::set<std::string> kinds;
  for (const auto& [tensor, pieces] : tensors) {
    if (tensor.part.index > 0) continue;  // the first part stands for the whole
    known.insert({tensor.parameter, tensor.kind});
    kinds.insert(tensor.kind);
    const auto number = reader.find(tensor.parameter, tensor.kind);
    if (!number) {
      found.push_back(fmt::format("{} ({}) is not saved", tensor.parameter, tensor.kind));
      continue;
    }
    const CheckpointTensor& saved = reader.manifest().tensors[static_cast<std::size_t>(*number)];
    if (saved.shape != tensor.shape)
      found.push_back(fmt::format("{} ({}) is {} there and {} here", tensor.parameter, tensor.kind, saved.shape.str(),
                                  tensor.shape.str()));
    else if (saved.dtype != tensor.dtype)
      found.push_back(fmt::format("{} ({}) is {} there and {} here", tensor.parameter, tensor.kind,
                                  name_of(saved.dtype), name_of(tensor.dtype)));
  }
  for (const CheckpointTensor& tensor : reader.manifest().tensors) {
    if (tensor.part.index == 0 && kinds.contains(tensor.kind) && !known.contains({tensor.parameter, tensor.kind}))
      found.push_back(fmt::format("{} ({}) is not in the model", tensor.parameter, tensor.kind));
  }
  if (found.empty()) return {};
  const std::size_t count = found.size();
  found.resize(std::min(count, kMostNamed));
  return fmt::format("{} tensors differ: {}{}", count, fmt::join(found, "; "), count > kMostNamed ? " ..." : "");
}

/// Adds what this rank holds of a tensor, by the elements of the whole, from the saved tensor `saved`.
void request(std::vector<CheckpointReader::Request>& requests, std::int64_t saved, const HeldTensor& held) {
  const TensorParts parts = held.tensor.parts();
  for (const auto& piece : held.pieces) {
    for (std::int64_t run = 0; run < piece.range.runs; ++run) {
      const std::int64_t first = piece.range.begin + run * piece.range.stride;
      for (std::int64_t at = 0; at < piece.range.count;) {
        const std::int64_t count = std::min(piece.range.count - at, parts.left(first + at));
        requests.push_back(
            {saved, parts.in_whole(held.tensor.part.index, first + at), piece.run(run).slice(at, count)});
        at += count;
      }
    }
  }
}

void fill(CheckpointReader& reader, const std::vector<HeldTensor>& tensors, Executor& executor) {
  Context& context = executor.context();
  const HostLink& link = executor.link();
  if (const std::string found = differences(reader, tensors); !found.empty())
    throw Error(ExitCode::checkpoint, "the checkpoint is of another model: " + found, reader.folder(),
                "load it into the model that it was saved from");
  std::vector<CheckpointReader::Request> requests;
  for (const HeldTensor& held : tensors)
    request(requests, reader.find(held.tensor.parameter, held.tensor.kind).value(), held);
  CheckpointReader::Store store;
  const bool has_cast =
      std::any_of(requests.begin(), requests.end(), [](const auto& one) { return one.out.dtype == DType::bf16; });
  if (context.device().kind() == DeviceKind::cuda || !link.disk_bytes().empty() || has_cast) {
    std::vector<BFloat16> rounded;
    store = [&context, &link, rounded](const Buffer& out, const void* elements) mutable {
      if (out.dtype == DType::bf16) {  // saved as f32
        const auto* const values = static_cast<const float*>(elements);
        rounded = std::vector<BFloat16>(values, values + out.elems);
        elements = rounded.data();
      }
      if (link.is_on_disk(out)) return link.write(out, elements);
      if (out.device == DeviceKind::cuda) return upload_now(context, out, elements);
      std::memcpy(out.data, elements, static_cast<std::size_t>(out.bytes()));  // the host keeps `out`
    };
  }
  reader.read(requests, store);
  context.device().synchronize();
}

}  // namespace

TrainingState::TrainingState(World& of_world, Executor& of_executor, Optimizer& of_optimizer)
    : world(of_world), executor(of_executor), optimizer(of_optimizer) {
  if (&optimizer.trained() == &executor) return;
  const auto text_of = [](const Executor& of) {
    std::int64_t elems = 0;
    for (const FlatParameter& unit : of.units()) elems += unit.layout->numel();
    return fmt::format("{} units and {} elements, the first {}", of.units().size(), elems,
                       of.units().empty() ? "none" : of.units().front().layout->views().front().name);
  };
  throw UsageError(fmt::format("a TrainingState of a model ({}) with the optimizer {} of another ({})",
                               text_of(executor), optimizer.kind(), text_of(optimizer.trained())),
                   "pass the optimizer that was made from this model");
}

namespace {

/// Makes the masters that have been read the weights that the model is used with.
void apply_evaluation(CheckpointReader& reader, const std::vector<HeldTensor>& masters, Executor& executor) {
  const auto evaluation = saved_evaluation(reader.manifest().attributes);
  if (!evaluation) return;
  Context& context = executor.context();
  const HostLink& link = executor.link();
  std::vector<CheckpointReader::Request> requests;
  for (const HeldTensor& held : masters) {
    if (const auto tensor = reader.find(held.tensor.parameter, evaluation->state)) request(requests, *tensor, held);
  }
  reader.read(requests, [&](const Buffer& out, const void* elements) {
    std::vector<float> values(static_cast<std::size_t>(out.elems));
    if (link.is_on_disk(out))
      link.read(out, values.data());
    else
      std::copy_n(HostView(context, context.stream(), out).as<float>(), out.elems, values.data());
    evaluation->apply(values.data(), static_cast<const float*>(elements), out.elems);
    if (link.is_on_disk(out)) return link.write(out, values.data());
    if (out.device == DeviceKind::cuda) return upload_now(context, out, values.data());
    std::memcpy(out.data, values.data(), static_cast<std::size_t>(out.bytes()));
  });
  context.device().synchronize();
}

CheckpointInfo load_tensors(World& world, Executor& executor, const Optimizer* optimizer, const std::string& folder) {
  executor.wait_readers();
  executor.context().device().synchronize();
  CheckpointInfo info;
  together(world, [&] {
    CheckpointReader reader(folder);
    const std::vector<HeldTensor> tensors =
        held_tensors(executor, optimizer, holds_frozen(reader.manifest().attributes));
    if (optimizer != nullptr) check_state(reader, tensors);
    fill(reader, tensors, executor);
    if (optimizer == nullptr) apply_evaluation(reader, tensors, executor);
    info = {reader.manifest().step, reader.manifest().attributes};
  });
  executor.masters_loaded();
  return info;
}

}  // namespace

CheckpointInfo load(const TrainingState& state, const std::string& folder) {
  state.executor.step().check_between_steps("load()");
  CheckpointInfo info = load_tensors(state.world, state.executor, &state.optimizer, folder);
  take_updates(state, info);
  state.executor.step().set_steps_done(info.step);
  return info;
}

CheckpointInfo load_weights(World& world, Executor& executor, const std::string& folder) {
  executor.step().check_between_steps("load_weights()");
  CheckpointInfo info = load_tensors(world, executor, nullptr, folder);
  drop_updates(info);
  return info;
}

}  // namespace zs
