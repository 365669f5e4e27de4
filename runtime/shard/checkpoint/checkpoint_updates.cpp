#include "runtime/shard/checkpoint/checkpoint_updates.h"

#include <cstdint>
#include <sstream>
#include <string_view>

namespace zs {
namespace {

/// An attribute of our own: how often parameters were updated, where that is not the step; "12 blocks.3.up.weight", one
/// a line.
constexpr std::string_view kUpdates = ".updates";
std::string updates_key(const Optimizer& optimizer) { return fmt::format("{}{}", optimizer.kind(), kUpdates); }

/// Calls use(unit, place in it, name) for every parameter of every unit.
template <class Use>
void for_each_parameter(const Executor& executor, const Use& use) {
  for (std::size_t unit = 0; unit < executor.units().size(); ++unit) {
    const auto& views = executor.units()[unit].layout->views();
    for (std::size_t i = 0; i < views.size(); ++i) use(unit, i, views[i].name);
  }
}

}  // namespace

std::map<std::string, std::string> attributes_of(const TrainingState& state, const CheckpointInfo& info) {
  std::map<std::string, std::string> attributes = info.attributes;
  std::string updates;
  for_each_parameter(state.executor, [&](std::size_t unit, std::size_t i, const std::string& name) {
    const std::int64_t count = state.optimizer.updates(unit, i);
    if (count != info.step) updates += fmt::format("{} {}\n", count, name);
  });
  if (!updates.empty()) attributes[updates_key(state.optimizer)] = updates;
  return attributes;
}

void take_updates(const TrainingState& state, CheckpointInfo& info) {
  std::map<std::string, std::int64_t> updates;
  std::istringstream lines(info.attributes[updates_key(state.optimizer)]);
  info.attributes.erase(updates_key(state.optimizer));
  std::string name;
  for (std::int64_t count = 0; lines >> count && lines.ignore() && std::getline(lines, name);) updates[name] = count;
  for_each_parameter(state.executor, [&](std::size_t unit, std::size_t i, const std::string& parameter) {
    const auto counted = updates.find(parameter);
    state.optimizer.set_updates(unit, i, counted == updates.end() ? info.step : counted->second);
  });
}

void drop_updates(CheckpointInfo& info) {
  std::erase_if(info.attributes, [](const auto& attribute) { return attribute.first.ends_with(kUpdates); });
}

}  // namespace zs
