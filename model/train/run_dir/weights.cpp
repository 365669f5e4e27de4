#include "model/train/run_dir/weights.h"

#include <xxhash.h>

#include <map>
#include <memory>

#include "model/train/session/whole_parameters.h"
#include "model/weights/safetensors.h"

namespace zs {
namespace {

std::vector<TensorEntry> entries(const Executor& executor) {
  std::vector<TensorEntry> entries;
  for (const FlatParameter& unit : executor.units()) {
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

std::string save_weights(Executor& executor, const std::string& path) {
  std::unique_ptr<SafetensorsWriter> file;
  if (executor.rank() == 0 && !path.empty()) file = std::make_unique<SafetensorsWriter>(path, entries(executor));
  std::map<std::string, std::uint64_t> hashes;
  for (int unit = 0; unit < static_cast<int>(executor.units().size()); ++unit) {
    read_whole(executor, unit, [&](const Parameter& parameter, const float* values) {
      const auto bytes = whole_shape(parameter).numel() * size_of(DType::f32);
      hashes[parameter.name()] = XXH3_64bits(values, static_cast<std::size_t>(bytes));
      if (file) file->append(values, bytes);
    });
  }
  if (file) file->finish();
  return combine(hashes);
}

}  // namespace zs
