#include "model/train/run_dir/export_sources.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "model/lora/lora_folder.h"
#include "model/lora/saved_modules.h"
#include "model/train/config/expand_path.h"
#include "model/train/rank/error_line.h"
#include "runtime/shard/checkpoint/held_state.h"
#include "runtime/shard/optimizers/optimizer.h"

namespace zs {
namespace {

/// An adapter's folder, and what its change is multiplied with.
std::pair<std::string, double> merge_of(const std::string& text) {
  const std::size_t at = text.rfind('=');
  if (at == text.npos) return {text, 1};
  double weight = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, failed] = std::from_chars(text.data() + at + 1, end, weight);
  if (failed != std::errc() || stop != end || !std::isfinite(weight))
    throw Error(ExitCode::usage, fmt::format("--merge {}: the weight is no number", text), "command line",
                "write FOLDER=WEIGHT, such as my-adapter=0.5");
  return {text.substr(0, at), weight};
}

}  // namespace

CheckpointSource::CheckpointSource(const std::string& folder, bool is_average)
    : reader_(folder),
      is_average_(is_average && reader_.manifest().step > 0),
      evaluation_(saved_evaluation(reader_.manifest().attributes)) {
  bool has_average = false;
  for (const CheckpointTensor& tensor : reader_.manifest().tensors) {
    if (tensor.kind == kMasterKind && tensor.part.index == 0) parameters_.push_back({tensor.parameter, tensor.shape});
    has_average = has_average || tensor.kind == Optimizer::kAverage;
  }
  if (is_average_ && !has_average)
    throw Error(ExitCode::checkpoint, "the checkpoint has no average of the weights", folder,
                "leave --average out, or train with train.average");
}

void CheckpointSource::read(const std::string& parameter, std::int64_t first, std::int64_t count, float* out) {
  auto tensor = is_average_ ? reader_.find(parameter, Optimizer::kAverage) : std::nullopt;
  if (!tensor) tensor = reader_.find(parameter, kMasterKind);  // a frozen parameter is its own average
  ZS_CHECK(tensor, "no weights of {}", parameter);
  reader_.read({{*tensor, first, {out, count, DType::f32, DeviceKind::cpu}}});
  const auto state = evaluation_ ? reader_.find(parameter, evaluation_->state) : std::nullopt;
  if (!state) return;
  std::vector<float> of_state(static_cast<std::size_t>(count));
  reader_.read({{*state, first, {of_state.data(), count, DType::f32, DeviceKind::cpu}}});
  evaluation_->apply(out, of_state.data(), count);
}

SavedWeights::SavedWeights(const std::string& path) : files_(path) {
  for (const auto& [name, tensor] : files_.tensors())
    parameters_.push_back({name, Shape(files_.header_of(tensor).shape)});
}

void SavedWeights::read(const std::string& parameter, std::int64_t first, std::int64_t count, float* out) {
  files_.read(parameter, first * size_of(DType::f32), out, count * size_of(DType::f32));
}

ImportedWeights::ImportedWeights(std::unique_ptr<WeightImport> weights, std::vector<ParameterShape> parameters)
    : weights_(std::move(weights)), parameters_(std::move(parameters)) {
  for (const std::string& warning : weights_->warnings()) print_warning(warning);
  for (const ParameterShape& parameter : parameters_) columns_[parameter.name] = columns_of(parameter.shape);
}

void ImportedWeights::read(const std::string& parameter, std::int64_t first, std::int64_t count, float* out) {
  for (const Block& block : blocks_of(first, count, count, count, columns_.at(parameter))) {
    weights_->read(parameter, block, out);
    out += block.rows * block.columns;
  }
}

RoundedWeights::RoundedWeights(std::shared_ptr<ParameterSource> exact, const FrozenFormat* format,
                               std::set<std::string> rounded)
    : exact_(std::move(exact)), format_(format), rounded_(std::move(rounded)) {
  for (const ParameterShape& parameter : exact_->parameters()) elems_[parameter.name] = parameter.shape.numel();
}

void RoundedWeights::read(const std::string& parameter, std::int64_t first, std::int64_t count, float* out) {
  if (!rounded_.contains(parameter)) return exact_->read(parameter, first, count, out);
  const std::int64_t block = format_->block_elems, begin = first / block * block,
                     end = std::min((first + count + block - 1) / block * block, elems_.at(parameter));
  std::vector<float> blocks(static_cast<std::size_t>(end - begin));
  exact_->read(parameter, begin, end - begin, blocks.data());
  format_->round(blocks.data(), end - begin);
  std::copy_n(blocks.begin() + (first - begin), count, out);
}

BothWeights::BothWeights(std::shared_ptr<ParameterSource> first, std::shared_ptr<ParameterSource> second)
    : first_(std::move(first)), second_(std::move(second)), parameters_(first_->parameters()) {
  for (const ParameterShape& parameter : parameters_) of_first_.insert(parameter.name);
  for (const ParameterShape& parameter : second_->parameters())
    if (!of_first_.contains(parameter.name)) parameters_.push_back(parameter);
}

void BothWeights::read(const std::string& parameter, std::int64_t first, std::int64_t count, float* out) {
  (of_first_.contains(parameter) ? first_ : second_)->read(parameter, first, count, out);
}

std::shared_ptr<ParameterSource> with_merged(std::shared_ptr<ParameterSource> weights, ModelConfig& model,
                                             const std::vector<std::string>& merges) {
  for (const std::string& text : merges) {
    const auto [name, weight] = merge_of(text);
    const LoraConfig lora = read_lora_folder(expand_path(name), model);
    const auto refuse = [folder = lora.path](const char* what) {
      throw Error(ExitCode::model, fmt::format("--merge adds what adapters change, and this one has {}", what), folder,
                  "merge it alone, by --set lora.path");
    };
    if (lora.dora) refuse("magnitudes (DoRA), which divide by the norms of all");
    if (!lora.modules_to_save.empty()) refuse("modules that were trained whole");
    const auto parameters = trained_parameters(model, lora);
    const auto adapter = std::make_shared<ImportedWeights>(open_adapter(model, lora), parameters);
    weights = merged(std::move(weights), adapter, model, lora, weight);
    if (unties_head(model, lora)) model.tied_head = false;
  }
  return weights;
}

}  // namespace zs
