#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "model/lora/lora_folder.h"
#include "model/lora/saved_modules.h"

namespace zs {
namespace {

const std::string kHead = "head.weight";

/// The weights with what the adapters change.
class MergedWeights final : public ParameterSource {
 public:
  MergedWeights(std::shared_ptr<ParameterSource> base, std::shared_ptr<ParameterSource> adapters,
                const ModelConfig& model, const LoraConfig& lora, double weight)
      : base_(std::move(base)), adapters_(std::move(adapters)) {
    for (LoraTarget& target : lora_targets(model, lora)) {
      target.scale = static_cast<float>(target.scale * weight);
      targets_[target.parameter].push_back(std::move(target));
    }
    for (const SavedModule& saved : saved_modules(model, lora))
      for (const TensorRule& rule : saved.rules) saved_.insert(rule.parameter);
    for (const ParameterShape& parameter : base_->parameters())
      if (!is_adapter_parameter(parameter.name)) parameters_.push_back(parameter);
    if (!unties_head(model, lora)) return;
    const auto embedding = std::find_if(parameters_.begin(), parameters_.end(), [](const ParameterShape& parameter) {
      return parameter.name == kTokenEmbedding;
    });
    parameters_.push_back({kHead, embedding->shape});
    is_untied_ = true;
  }

  const std::vector<ParameterShape>& parameters() const override { return parameters_; }

  void read(const std::string& parameter, std::int64_t first, std::int64_t count, float* out) override {
    if (is_untied_ && parameter == kHead) return base_->read(kTokenEmbedding, first, count, out);
    if (saved_.contains(parameter)) return adapters_->read(parameter, first, count, out);
    base_->read(parameter, first, count, out);
    const auto changed = targets_.find(parameter);
    if (changed == targets_.end()) return;
    if (parameter != at_hand_) take(parameter, changed->second);
    for (std::size_t i = 0; i < factors_.size(); ++i) add(changed->second[i], factors_[i], first, count, out);
  }

 private:
  struct Factors {
    std::vector<float> a, b;  // (rank, columns), (rows, rank)
    std::vector<double> row;  // (rows): factor of each whole row; empty: 1
  };

  std::vector<float> all_of(const std::string& parameter, std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    adapters_->read(parameter, 0, count, values.data());
    return values;
  }

  /// Reads the adapters of one parameter: its pieces are asked for one after the other.
  void take(const std::string& parameter, const std::vector<LoraTarget>& targets) {
    factors_.clear();
    for (const LoraTarget& target : targets) {
      Factors& factors = factors_.emplace_back();
      if (target.is_embedding) {  // a row of it is A's row times B's transpose
        const std::vector<float> b = all_of(target.b(), target.columns * target.rank);
        factors.b = all_of(target.a(), target.rows * target.rank);
        factors.a.resize(b.size());
        for (std::int64_t i = 0; i < std::ssize(b); ++i)
          factors.a[static_cast<std::size_t>(i % target.rank * target.columns + i / target.rank)] =
              b[static_cast<std::size_t>(i)];
        continue;
      }
      factors.a = all_of(target.a(), target.rank * target.columns * std::max<std::int64_t>(1, target.experts));
      factors.b = all_of(target.b(), target.rows * target.rank);
      if (target.has_magnitude) take_row_factors(target, factors);
    }
    at_hand_ = parameter;
  }

  /// Magnitudes through the norms of the rows that they are of.
  void take_row_factors(const LoraTarget& target, Factors& factors) {
    const std::vector<float> magnitudes = all_of(target.magnitude(), target.rows);
    std::vector<float> row(static_cast<std::size_t>(target.columns)), change(row.size());
    for (std::int64_t i = 0; i < target.rows; ++i) {
      base_->read(target.parameter, (target.row + i) * target.columns, target.columns, row.data());
      change_of_row(target, factors, i, change);
      double squares = 0;
      for (std::size_t k = 0; k < row.size(); ++k) {
        const double sum = static_cast<double>(row[k]) + static_cast<double>(change[k]);
        squares += sum * sum;
      }
      factors.row.push_back(
          squares > 0 ? static_cast<double>(magnitudes[static_cast<std::size_t>(i)]) / std::sqrt(squares) : 0);
    }
  }

  /// Writes what A and B change of a target's row: scale (B A)[row].
  static void change_of_row(const LoraTarget& target, const Factors& factors, std::int64_t row,
                            std::vector<float>& change) {
    std::fill(change.begin(), change.end(), 0.0f);
    for (std::int64_t k = 0; k < target.rank; ++k) {
      const float b = factors.b[static_cast<std::size_t>(row * target.rank + k)];
      const std::int64_t expert = target.experts > 0 ? row / target.own_rows() : 0;
      const float* const a = factors.a.data() + (expert * target.rank + k) * target.columns;
      for (std::size_t i = 0; i < change.size(); ++i) change[i] += b * a[i];
    }
    for (float& value : change) value *= target.scale;
  }

  void add(const LoraTarget& target, const Factors& factors, std::int64_t first, std::int64_t count, float* out) const {
    const std::int64_t columns = target.columns, end = first + count;
    std::vector<float> change(static_cast<std::size_t>(columns));
    const std::int64_t last = std::min(target.row + target.rows, (end + columns - 1) / columns);
    for (std::int64_t row = std::max(target.row, first / columns); row < last; ++row) {
      change_of_row(target, factors, row - target.row, change);
      const std::int64_t from = std::max(first, row * columns), to = std::min(end, (row + 1) * columns);
      for (std::int64_t i = from; i < to; ++i) out[i - first] += change[static_cast<std::size_t>(i - row * columns)];
      if (factors.row.empty()) continue;
      const double factor = factors.row[static_cast<std::size_t>(row - target.row)];
      for (std::int64_t i = from; i < to; ++i)
        out[i - first] = static_cast<float>(factor * static_cast<double>(out[i - first]));
    }
  }

  std::shared_ptr<ParameterSource> base_, adapters_;
  std::map<std::string, std::vector<LoraTarget>> targets_;  // by parameter
  std::set<std::string> saved_;                             // parameters that are trained whole
  std::vector<ParameterShape> parameters_;
  bool is_untied_ = false;
  std::string at_hand_;
  std::vector<Factors> factors_;  // factors of the parameter at hand
};

}  // namespace

bool unties_head(const ModelConfig& model, const LoraConfig& lora) {
  if (!model.tied_head || !lora.is_on()) return false;
  const std::vector<LoraTarget> targets = lora_targets(model, lora);
  return std::any_of(targets.begin(), targets.end(), [](const LoraTarget& target) { return target.is_embedding; });
}

std::unique_ptr<ParameterSource> merged(std::shared_ptr<ParameterSource> base,
                                        std::shared_ptr<ParameterSource> adapters, const ModelConfig& model,
                                        const LoraConfig& lora, double weight) {
  return std::make_unique<MergedWeights>(std::move(base), std::move(adapters), model, lora, weight);
}

}  // namespace zs
