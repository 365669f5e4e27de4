#include "model/train/run_dir/import_weights.h"

#include <algorithm>
#include <cstring>

#include "comm/together.h"
#include "model/families/family.h"
#include "model/lora/lora_folder.h"
#include "model/train/run_dir/frozen_weights.h"
#include "model/weights/weight_files.h"
#include "runtime/tensor/host_view.h"

namespace zs {
namespace {

/// Elements that go to a GPU or a disk, or are rounded, at once.
constexpr std::int64_t kPieceElems = std::int64_t{1} << 20;

/// Reads a block into `out`, of its size: f32 at once into the host's memory, else some rows at a time.
void read_block(Executor& executor, WeightImport& weights, const std::string& parameter, const Block& block,
                const Buffer& out) {
  const bool is_rounded = out.dtype == DType::bf16;
  if (out.device == DeviceKind::cpu && !is_rounded)
    return weights.read(parameter, block, static_cast<float*>(out.data));
  const std::int64_t rows = std::max<std::int64_t>(1, kPieceElems / block.columns);
  std::vector<float> piece(static_cast<std::size_t>(std::min(rows, block.rows) * block.columns));
  std::vector<BFloat16> rounded;
  for (std::int64_t done = 0; done < block.rows; done += rows) {
    const std::int64_t count = std::min(rows, block.rows - done);
    weights.read(parameter, {block.row + done, count, block.column, block.columns}, piece.data());
    const Buffer part = out.slice(done * block.columns, count * block.columns);
    const void* values = piece.data();
    if (is_rounded) {
      rounded = std::vector<BFloat16>(piece.begin(), piece.begin() + part.elems);
      values = rounded.data();
    }
    if (executor.link().is_on_disk(part))
      executor.link().write(part, values);
    else if (part.device == DeviceKind::cuda)
      upload_now(executor.context(), part, values);
    else
      std::memcpy(part.data, values, static_cast<std::size_t>(part.bytes()));
  }
}

/// The file that has it; null: none.
WeightImport* file_of(const WeightImports& weights, const std::string& parameter) {
  const auto found =
      std::find_if(weights.begin(), weights.end(), [&](const auto& file) { return file->has(parameter); });
  return found == weights.end() ? nullptr : found->get();
}

/// A block of a part as blocks of the whole, in the same order.
std::vector<Block> blocks_in_whole(const FlatView& view, const Block& block) {
  const ParameterPart& part = view.part;
  if (part.is_whole()) return {block};
  if (part.dim > 0) {
    ZS_CHECK(view.shape.rank() == 2, "{} {} is cut on dim {}", view.name, view.shape.str(), part.dim);
    return {{block.row, block.rows, block.column + part.index * columns_of(view.shape), block.columns}};
  }
  const TensorParts rows({rows_of(view.shape) * part.count}, part);
  std::vector<Block> blocks;
  for (std::int64_t at = 0; at < block.rows; at += blocks.back().rows)
    blocks.push_back({rows.in_whole(part.index, block.row + at), std::min(block.rows - at, rows.left(block.row + at)),
                      block.column, block.columns});
  return blocks;
}

/// Reads what files have of the unit into `held`, of its weights on this rank.
void read_shard(Executor& executor, const WeightImports& weights, const FlatParameter& unit, const Buffer& held) {
  for (const ShardSegment& segment : unit.held_segments()) {
    const FlatView& view = unit.layout->views()[segment.view];
    WeightImport* const file = file_of(weights, view.name);
    if (file == nullptr) continue;
    std::int64_t at = segment.shard_offset;
    for (const Block& of_part :
         blocks_of(segment.view_offset, segment.count, segment.run, segment.stride, columns_of(view.shape)))
      for (const Block& block : blocks_in_whole(view, of_part)) {
        const std::int64_t elems = block.rows * block.columns;
        read_block(executor, *file, view.name, block, held.slice(at, elems));
        at += elems;
      }
  }
}

/// Reads the shard in f32, and encodes it.
void read_encoded(Executor& executor, const WeightImports& weights, const FlatParameter& unit) {
  const auto is_there = [&](const FlatView& view) { return file_of(weights, view.name) != nullptr; };
  const auto& views = unit.layout->views();
  const auto count = std::count_if(views.begin(), views.end(), is_there);
  if (count == 0) return;
  ZS_CHECK(count == std::ssize(views), "{} of {} parameters of unit {} are in a file", count, views.size(), unit.name);
  const std::int64_t elems = unit.layout->shard_elems();
  std::vector<float> shard(static_cast<std::size_t>(elems));
  read_shard(executor, weights, unit, {shard.data(), elems, DType::f32, DeviceKind::cpu});
  const Buffer encoded = unit.encoded_buffer();
  std::vector<std::byte> bytes(static_cast<std::size_t>(encoded.elems));
  unit.held_format->encode(bytes.data(), shard.data(), elems);
  if (encoded.device == DeviceKind::cuda) return upload_now(executor.context(), encoded, bytes.data());
  std::memcpy(encoded.data, bytes.data(), bytes.size());
}

void read_unit(Executor& executor, const WeightImports& weights, const FlatParameter& unit) {
  if (unit.is_encoded()) return read_encoded(executor, weights, unit);
  read_shard(executor, weights, unit, unit.weights_buffer());
}

std::vector<ParameterShape> shapes_of(const TrainPlan& plan) {
  std::vector<ParameterShape> parameters;
  for (const TrainPlan::Unit& unit : plan.units)
    for (const FlatView& view : unit.layout->views()) parameters.push_back({view.name, view.whole_shape()});
  return parameters;
}

}  // namespace

std::unique_ptr<WeightImport> open_model_weights(const Config& config, const TrainPlan& plan,
                                                 const std::string& folder) {
  std::vector<ParameterShape> parameters = shapes_of(plan);
  std::erase_if(parameters, [](const ParameterShape& parameter) { return is_adapter_parameter(parameter.name); });
  return std::make_unique<WeightImport>(folder, family_named(config.model.family).tensor_map(config.model), parameters);
}

WeightImports open_weights(const Config& config, const TrainPlan& plan) {
  WeightImports weights;  // the first that has a parameter counts: an adapter may have modules that are trained whole
  if (!config.lora.path.empty()) weights.push_back(open_adapter(config.model, config.lora));
  if (!config.model.path.empty()) weights.push_back(open_model_weights(config, plan, config.model.path));
  return weights;
}

WeightImports open_run_weights(const Config& config, const TrainPlan& plan, const std::string& path, bool checks) {
  std::vector<ParameterShape> parameters = shapes_of(plan);
  const WeightFiles files(path);
  const auto frozen = FrozenWeights::in(files.files().front().header.metadata);
  if (frozen) {
    std::erase_if(parameters, [&](const ParameterShape& parameter) {
      return files.find(parameter.name) == nullptr && !is_adapter_parameter(parameter.name);
    });
  }
  TensorMap own;
  for (const ParameterShape& parameter : parameters)
    own.rules.push_back({.parameter = parameter.name, .parts = {{parameter.name}}});
  WeightImports weights;
  weights.push_back(std::make_unique<WeightImport>(path, own, parameters));
  if (!frozen) return weights;
  const std::string folder = frozen->found(config.model.path, path);
  weights.push_back(open_model_weights(config, plan, folder));
  if (checks) frozen->check(folder, path);
  return weights;
}

bool has_parameter(const WeightImports& weights, const std::string& parameter) {
  return file_of(weights, parameter) != nullptr;
}

void import_weights(World& world, Executor& executor, const WeightImports& weights) {
  executor.step().check_between_steps("import_weights()");
  executor.wait_readers();
  executor.context().device().synchronize();
  together(world, [&] {
    for (const FlatParameter& unit : executor.units()) read_unit(executor, weights, unit);
    executor.context().device().synchronize();
  });
  executor.masters_loaded();
}

}  // namespace zs
