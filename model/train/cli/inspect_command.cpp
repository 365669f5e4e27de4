#include <filesystem>
#include <memory>

#include "model/train/cli/commands.h"
#include "model/train/cli/rank_work.h"
#include "model/train/config/expand_path.h"
#include "model/train/run_dir/saved_model.h"
#include "model/weights/weight_files.h"
#include "runtime/base/units.h"
#include "runtime/shard/checkpoint/checkpoint_folder.h"

namespace zs {
namespace {

/// Tensors, a line each, and all together behind them.
class Listing {
 public:
  void add(const std::string& name, const std::string& dtype, const std::string& shape, std::int64_t bytes) {
    text_ += fmt::format("{:<48} {:<5} {:>14}  {}\n", name, dtype, bytes, shape);
    ++count_, bytes_ += bytes;
  }
  std::string end(const std::string& of) const {
    return fmt::format("{:<48} {:<5} {:>14}  {}\n", "tensor", "dtype", "bytes", "shape") + text_ +
           fmt::format("{}: {} tensors, {}\n", of, count_, format_bytes(bytes_));
  }

 private:
  std::string text_;
  std::int64_t count_ = 0, bytes_ = 0;
};

std::string list_checkpoint(const std::string& folder) {
  const CheckpointReader reader(folder);
  const CheckpointManifest& manifest = reader.manifest();
  Listing listing;
  for (const CheckpointTensor& tensor : manifest.tensors)
    listing.add(fmt::format("{} ({})", tensor.parameter, tensor.kind), std::string(name_of(tensor.dtype)),
                tensor.part.is_whole() ? tensor.shape.str()
                                       : fmt::format("{}, part {} of {} along dim {}", tensor.shape.str(),
                                                     tensor.part.index + 1, tensor.part.count, tensor.part.dim),
                tensor.parts().numel() * size_of(tensor.dtype));
  return listing.end(fmt::format("{}: step {}, written by {} ranks", folder, manifest.step, manifest.files.size()));
}

std::string list_weights(const std::string& path) {
  const WeightFiles weights(path);
  Listing listing;
  for (const auto& [name, place] : weights.tensors()) {
    const SafetensorsHeader::Tensor& tensor = weights.header_of(place);
    listing.add(name, std::string(name_of(tensor.dtype)), tensor.shape_text(), tensor.end - tensor.begin);
  }
  return listing.end(path);
}

/// A run stands for what it has saved last.
std::string list(const std::string& path) {
  std::error_code failed;
  if (!std::filesystem::is_directory(path, failed) ||
      std::filesystem::exists(std::filesystem::path(path) / "config.json", failed))
    return list_weights(path);
  const SavedModel model = find_saved_model(path);
  return model.checkpoint.empty() ? list_weights(model.weights) : list_checkpoint(model.checkpoint);
}

Command::Action add_inspect(CLI::App& app, const Invocation&) {
  const auto path = std::make_shared<std::string>();
  app.add_option("RUN", *path, "a run, a checkpoint, a model's folder, or a file of weights")
      ->required()
      ->check(not_empty);
  return [path] { return run_alone([&] { return print_answer(list(expand_path(*path))); }); };
}

}  // namespace

Command inspect_command() {
  return {.name = "inspect",
          .usage = "RUN",
          .summary = "Lists the tensors of a run, a checkpoint, a model's folder, or a file of weights.",
          .add = add_inspect};
}

}  // namespace zs
