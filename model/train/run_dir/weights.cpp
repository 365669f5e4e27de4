#include "model/train/run_dir/weights.h"

#include <xxhash.h>

#include <map>
#include <memory>

#include "model/train/session/whole_parameters.h"
#include "model/weights/safetensors.h"

namespace zs {
namespace {

std::vector<TensorEntry> entries(const Executor& executor, bool with_frozen) {
  std::vector<TensorEntry> entries;
  for (const FlatParameter& unit : executor.units()) {
    if (unit.is_frozen && !with_frozen) continue;
    for (const Parameter* parameter : unit.parameters)
      entries.push_back({parameter->name(), DType::f32, whole_shape(*parameter)});
  }
  return entries;
}

std::string combine(const std::map<std::string, std::uint64_t>& hashes) {
  std::string text;
  for (const auto& [name, hash] : hashes) text += fmt::format("{} {:016x}\n", name, hash);
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

}  // namespace

std::string save_weights(Executor& executor, const WeightsFile& saved) {
  const bool with_frozen = saved.frozen.empty();
  std::unique_ptr<SafetensorsWriter> file;
  if (executor.rank() == 0 && !saved.path.empty())
    file = std::make_unique<SafetensorsWriter>(saved.path, entries(executor, with_frozen), saved.frozen);
  std::map<std::string, std::uint64_t> hashes;
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), XXH3_freeState);
  for (int unit = 0; unit < static_cast<int>(executor.units().size()); ++unit) {
    const bool is_written = with_frozen || !executor.units()[static_cast<std::size_t>(unit)].is_frozen;
    read_whole(executor, unit, [&](const Parameter& parameter, const Executor::Piece& piece) {
      const std::int64_t bytes = piece.count * size_of(DType::f32);
      if (piece.first == 0) XXH3_64bits_reset(state.get());
      XXH3_64bits_update(state.get(), piece.values, static_cast<std::size_t>(bytes));
      hashes[parameter.name()] = XXH3_64bits_digest(state.get());
      if (file && is_written) file->append(piece.values, bytes);
    });
  }
  if (file) file->finish();
  return combine(hashes);
}

std::int64_t whole_elems(const UnitLayout& layout) {
  std::int64_t elems = 0;
  for (const FlatView& view : layout.views()) elems += view.whole_shape().numel();
  return elems;
}

std::int64_t saved_bytes(const TrainPlan& plan, bool with_frozen) {
  std::int64_t elems = 0;
  for (const TrainPlan::Unit& unit : plan.units)
    if (with_frozen || !unit.is_frozen) elems += whole_elems(*unit.layout);
  return size_of(DType::f32) * elems;
}

}  // namespace zs
