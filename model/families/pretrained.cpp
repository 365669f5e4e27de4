#include "model/families/pretrained.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "comm/together.h"
#include "model/data/output_file.h"
#include "model/families/family.h"
#include "model/families/hf_config.h"
#include "model/nn/module_parameters.h"
#include "model/weights/weight_export.h"
#include "model/weights/weight_import.h"
#include "runtime/base/standard_streams.h"
#include "runtime/shard/checkpoint/held_state.h"
#include "runtime/shard/runtime/unshard_scope.h"

namespace zs {
namespace {

/// Model that a folder's config.json describes.
struct FolderModel {
  explicit FolderModel(const std::string& folder) : config(HfConfig::of_folder(folder)), family(family_of(config)) {
    config.refuse_foreign(family.settings);
    model = family.from_config(config);
    family.derive(model);
  }

  HfConfig config;
  const Family& family;
  ModelConfig model;
};

std::vector<ParameterShape> shapes_of(const Executor& executor) {
  std::vector<ParameterShape> shapes;
  for (const FlatParameter& unit : executor.units())
    for (const Parameter* parameter : unit.parameters) shapes.push_back({parameter->name(), parameter->shape()});
  return shapes;
}

/// Error(model) unless the sharded model is one of the folder's.
void check_parameters(const FolderModel& source, const std::vector<ParameterShape>& shapes) {
  std::map<std::string, Shape> own;
  for_each_parameter(*source.family.make(source.model), [&](const Parameter& p) { own[p.name()] = p.shape(); });
  const auto refuse = [&](const std::string& what) {
    throw Error(ExitCode::model, "the model is not the folder's: " + what, source.config.file(),
                "make it by make_pretrained() of this folder");
  };
  for (const ParameterShape& shape : shapes) {
    const auto found = own.find(shape.name);
    if (found == own.end()) refuse(fmt::format("the folder's has no {}", shape.name));
    if (found->second != shape.shape)
      refuse(fmt::format("{} is {}, and the folder's {}", shape.name, shape.shape.str(), found->second.str()));
  }
  if (own.size() != shapes.size()) refuse(fmt::format("{} parameters for {}", shapes.size(), own.size()));
}

/// Weights of a whole model, in memory.
class WholeWeights final : public ParameterSource {
 public:
  explicit WholeWeights(std::vector<ParameterShape> shapes) : shapes_(std::move(shapes)) {}

  void add(const Parameter& parameter, const float* values) {
    values_[parameter.name()].assign(values, values + parameter.numel());
  }
  const std::vector<ParameterShape>& parameters() const override { return shapes_; }
  void read(const std::string& parameter, std::int64_t first, std::int64_t count, float* out) override {
    std::copy_n(values_.at(parameter).begin() + first, count, out);
  }

 private:
  std::vector<ParameterShape> shapes_;
  std::map<std::string, std::vector<float>> values_;
};

void write_folder(WholeWeights& weights, const std::string& from, const std::string& to) {
  const FolderModel source(from);
  check_parameters(source, weights.parameters());
  OutputFolder folder(to);
  export_safetensors(weights, source.family.tensor_map(source.model), folder.writing(), {});
  for (const std::string& line : copy_companions(from, from, folder.writing())) print_to_stderr("warning: {}\n", line);
  nlohmann::ordered_json document = nlohmann::ordered_json::parse(source.config.document().dump());
  if (document.contains("torch_dtype")) document["torch_dtype"] = "float32";
  document["dtype"] = "float32";
  write_file_atomically((std::filesystem::path(folder.writing()) / HfConfig::kFile).string(), document.dump(2) + "\n");
  folder.commit();
}

}  // namespace

std::unique_ptr<LanguageModel> make_pretrained(const std::string& folder) {
  const FolderModel source(folder);
  return source.family.make(source.model);
}

void load_pretrained(World& world, ShardedRuntime& runtime, const std::string& folder) {
  Executor& executor = runtime.executor();
  executor.step().check_between_steps("load_pretrained()");
  check_not_partitioned(executor, "load_pretrained()");
  std::unique_ptr<WeightImport> file;
  together(world, [&] {
    const FolderModel source(folder);
    check_parameters(source, shapes_of(executor));
    file = std::make_unique<WeightImport>(folder, source.family.tensor_map(source.model), shapes_of(executor));
  });
  constexpr int kReader = 0;
  for (int unit = 0; unit < static_cast<int>(executor.units().size()); ++unit) {
    const UnshardScope scope(runtime, {unit}, {.only_rank = kReader, .on_host = true});
    if (executor.rank() != kReader) continue;
    for (const Parameter* parameter : executor.units()[static_cast<std::size_t>(unit)].parameters)
      file->read(parameter->name(), {0, rows_of(parameter->shape()), 0, columns_of(parameter->shape())},
                 scope.value(*parameter).as<float>());
  }
}

Pretrained load_pretrained(Job& job, const std::string& folder, const FullyShardOptions& options) {
  Pretrained loaded{make_pretrained(folder), nullptr};
  loaded.model = std::make_unique<ShardedModel>(fully_shard(*loaded.net, job, options));
  load_pretrained(job.world, loaded.model->runtime(), folder);
  return loaded;
}

void save_pretrained(World& world, ShardedRuntime& runtime, const std::string& from, const std::string& to) {
  Executor& executor = runtime.executor();
  check_not_partitioned(executor, "save_pretrained()");
  executor.step().check_between_steps("save_pretrained()", StepState::Weights::any);
  WholeWeights weights(shapes_of(executor));
  for (int unit = 0; unit < static_cast<int>(executor.units().size()); ++unit)
    executor.read_full(unit, [&](const Parameter& parameter, const float* values) {
      if (executor.rank() == 0) weights.add(parameter, values);
    });
  together(world, [&] {
    if (executor.rank() == 0) write_folder(weights, from, to);
  });
}

}  // namespace zs
