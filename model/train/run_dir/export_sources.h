#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "model/families/model_config.h"
#include "model/weights/weight_export.h"
#include "model/weights/weight_files.h"
#include "model/weights/weight_import.h"
#include "runtime/shard/checkpoint/checkpoint_folder.h"
#include "runtime/shard/checkpoint/checkpoint_updates.h"
#include "runtime/shard/placement/frozen_format.h"

namespace zs {

/// The weights of a checkpoint that its model is used with, or their average: before the first step that is the
/// weights.
class CheckpointSource final : public ParameterSource {
 public:
  CheckpointSource(const std::string& folder, bool is_average);
  const std::vector<ParameterShape>& parameters() const override { return parameters_; }
  void read(const std::string& parameter, std::int64_t first, std::int64_t count, float* out) override;
  const std::map<std::string, std::string>& attributes() const { return reader_.manifest().attributes; }

 private:
  CheckpointReader reader_;
  bool is_average_;
  std::optional<SavedEvaluation> evaluation_;
  std::vector<ParameterShape> parameters_;
};

/// Weights that save_weights has written: parameters by our names.
class SavedWeights final : public ParameterSource {
 public:
  explicit SavedWeights(const std::string& path);
  const std::vector<ParameterShape>& parameters() const override { return parameters_; }
  void read(const std::string& parameter, std::int64_t first, std::int64_t count, float* out) override;

 private:
  WeightFiles files_;
  std::vector<ParameterShape> parameters_;
};

/// Files that others have written, as the parameters that they would be here.
class ImportedWeights final : public ParameterSource {
 public:
  ImportedWeights(std::unique_ptr<WeightImport> weights, std::vector<ParameterShape> parameters);
  const std::vector<ParameterShape>& parameters() const override { return parameters_; }
  void read(const std::string& parameter, std::int64_t first, std::int64_t count, float* out) override;

 private:
  std::unique_ptr<WeightImport> weights_;
  std::vector<ParameterShape> parameters_;
  std::map<std::string, std::int64_t> columns_;
};

/// Another source, some of whose parameters are rounded to a format.
class RoundedWeights final : public ParameterSource {
 public:
  RoundedWeights(std::shared_ptr<ParameterSource> exact, const FrozenFormat* format, std::set<std::string> rounded);
  const std::vector<ParameterShape>& parameters() const override { return exact_->parameters(); }
  void read(const std::string& parameter, std::int64_t first, std::int64_t count, float* out) override;

 private:
  std::shared_ptr<ParameterSource> exact_;
  const FrozenFormat* format_;
  std::set<std::string> rounded_;
  std::map<std::string, std::int64_t> elems_;
};

/// The parameters of two sources, of the second those that the first has not.
class BothWeights final : public ParameterSource {
 public:
  BothWeights(std::shared_ptr<ParameterSource> first, std::shared_ptr<ParameterSource> second);
  const std::vector<ParameterShape>& parameters() const override { return parameters_; }
  void read(const std::string& parameter, std::int64_t first, std::int64_t count, float* out) override;

 private:
  std::shared_ptr<ParameterSource> first_, second_;
  std::vector<ParameterShape> parameters_;
  std::set<std::string> of_first_;
};

/// The weights of a model and what adapters change of them, each times its weight: `merges` are "FOLDER" or
/// "FOLDER=WEIGHT". The model is then one whose head is not tied, if that is so. Error(usage), Error(model).
std::shared_ptr<ParameterSource> with_merged(std::shared_ptr<ParameterSource> weights, ModelConfig& model,
                                             const std::vector<std::string>& merges);

}  // namespace zs
