#include "runtime/shard/checkpoint/checkpoint_updates.h"

#include <cstdint>
#include <sstream>
#include <string_view>
#include <vector>

#include "kernels/kernels.h"

namespace zs {
namespace {

/// Attribute that is there, and "exclude", where the weights of frozen units are left out.
constexpr const char* kFrozen = "checkpoint.frozen";
/// Attributes of our own, behind the optimizer's name: how often parameters were updated, where that is not the step;
/// the sums of their squared learning rates; "12 blocks.3.up.weight", one a line. And "STATE FACTOR" of an evaluation.
constexpr std::string_view kUpdates = ".updates", kSquaredLr = ".squared_lr", kEvaluation = ".evaluation";
std::string key_of(const Optimizer& optimizer, std::string_view what) {
  return fmt::format("{}{}", optimizer.kind(), what);
}

/// Calls use(unit, place in it, name) for every parameter of every unit.
template <class Use>
void for_each_parameter(const Executor& executor, const Use& use) {
  for (std::size_t unit = 0; unit < executor.units().size(); ++unit) {
    const auto& views = executor.units()[unit].layout->views();
    for (std::size_t i = 0; i < views.size(); ++i) use(unit, i, views[i].name);
  }
}

/// By parameter's name: what an attribute says, which is taken out.
template <class Number>
std::map<std::string, Number> take_numbers(CheckpointInfo& info, const std::string& key) {
  std::map<std::string, Number> numbers;
  std::istringstream lines(info.attributes[key]);
  info.attributes.erase(key);
  std::string name;
  for (Number number = 0; lines >> number && lines.ignore() && std::getline(lines, name);) numbers[name] = number;
  return numbers;
}

}  // namespace

std::map<std::string, std::string> attributes_of(const TrainingState& state, const CheckpointInfo& info) {
  std::map<std::string, std::string> attributes = info.attributes;
  const Optimizer::Definition& definition = state.optimizer.definition();
  std::string updates, squared_lr;
  const UpdateCounts::Progress progress = state.optimizer.counts().read();
  for_each_parameter(state.executor, [&](std::size_t unit, std::size_t i, const std::string& name) {
    const UpdateCount& count = progress[unit][i];
    if (const auto number = static_cast<std::int64_t>(count.updates); number != info.step)
      updates += fmt::format("{} {}\n", number, name);
    if (definition.sums_squared_lr()) squared_lr += fmt::format("{} {}\n", count.squared_lr, name);
  });
  if (!updates.empty()) attributes[key_of(state.optimizer, kUpdates)] = updates;
  if (!squared_lr.empty()) attributes[key_of(state.optimizer, kSquaredLr)] = squared_lr;
  if (definition.evaluation)
    attributes[key_of(state.optimizer, kEvaluation)] = fmt::format(
        "{} {}", state.optimizer.state_names().at(definition.evaluation->state), definition.evaluation->factor);
  if (!info.with_frozen) attributes[kFrozen] = "exclude";
  return attributes;
}

bool holds_frozen(const std::map<std::string, std::string>& attributes) { return !attributes.contains(kFrozen); }

void take_updates(const TrainingState& state, CheckpointInfo& info) {
  const auto updates = take_numbers<std::int64_t>(info, key_of(state.optimizer, kUpdates));
  const auto squared_lr = take_numbers<double>(info, key_of(state.optimizer, kSquaredLr));
  UpdateCounts::Progress progress(state.executor.units().size());
  for_each_parameter(state.executor, [&](std::size_t unit, std::size_t, const std::string& parameter) {
    const auto counted = updates.find(parameter);
    const auto sum = squared_lr.find(parameter);
    progress[unit].push_back({.updates = static_cast<double>(counted == updates.end() ? info.step : counted->second),
                              .squared_lr = sum == squared_lr.end() ? 0 : sum->second});
  });
  state.optimizer.counts().set(progress);
  drop_updates(info);
}

void drop_updates(CheckpointInfo& info) {
  info.with_frozen = holds_frozen(info.attributes);
  std::erase_if(info.attributes, [](const auto& attribute) {
    return attribute.first == kFrozen || attribute.first.ends_with(kUpdates) || attribute.first.ends_with(kSquaredLr) ||
           attribute.first.ends_with(kEvaluation);
  });
}

void SavedEvaluation::apply(float* masters, const float* state_of_them, std::int64_t count) const {
  ExecContext exec(1, nullptr);
  std::vector<float> moved(static_cast<std::size_t>(count));
  const auto on_host = [&](const float* data) {
    return Buffer{const_cast<float*>(data), count, DType::f32, DeviceKind::cpu};
  };
  cpu_kernels().scale(exec, on_host(moved.data()), on_host(state_of_them), factor);
  cpu_kernels().add(exec, on_host(masters), on_host(moved.data()), on_host(masters));
}

std::optional<SavedEvaluation> saved_evaluation(const std::map<std::string, std::string>& attributes) {
  for (const auto& [name, text] : attributes) {
    if (!name.ends_with(kEvaluation)) continue;
    SavedEvaluation evaluation{};
    if (std::istringstream(text) >> evaluation.state >> evaluation.factor) return evaluation;
  }
  return std::nullopt;
}

}  // namespace zs
