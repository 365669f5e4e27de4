// Groups of parameters that are updated otherwise than the rest.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/usage_error.h"
#include "runtime/shard/optimizers/optimizer.h"

namespace zs {

const ParameterGroup* Optimizer::group_of(const std::string& name) const {
  const auto pattern =
      std::find_if(patterns_.begin(), patterns_.end(), [&](const NamePattern& one) { return one.matches(name); });
  return pattern == patterns_.end() ? nullptr : &options_.groups[static_cast<std::size_t>(pattern - patterns_.begin())];
}

void Optimizer::check_numbers() const {
  const auto check = [&](const std::string& what, float value) {
    if (!(value >= 0) || !std::isfinite(value))
      throw UsageError(fmt::format("{}: {} of {}", name_, what, value), "pass a finite number, 0 or above");
  };
  check("a weight decay", options_.weight_decay);
  check("clipping to a norm", options_.clip);
  for (const ParameterGroup& group : options_.groups) {
    check(fmt::format("the group \"{}\" with a scale of learning rates", group.pattern), group.lr_scale);
    check(fmt::format("the group \"{}\" with a weight decay", group.pattern), group.weight_decay.value_or(0));
  }
}

void Optimizer::check_groups() const {
  for (const ParameterGroup& group : options_.groups) {
    const auto is_of = [&](const Parameter* parameter) { return group_of(parameter->name()) == &group; };
    const auto has_one = [&](const FlatParameter& unit) {
      return std::any_of(unit.parameters.begin(), unit.parameters.end(), is_of);
    };
    if (!std::any_of(executor_.units().begin(), executor_.units().end(), has_one)) {
      throw UsageError(fmt::format("{}: no parameter is of the group \"{}\"", name_, group.pattern),
                       "name parameters as they are called, such as \"*.bias\", and put narrower patterns first");
    }
  }
}

std::vector<Optimizer::Range> Optimizer::ranges(const FlatParameter& unit,
                                                const std::vector<ShardSegment>& segments) const {
  std::vector<Range> ranges;
  for (const ShardSegment& segment : segments) {
    const FlatView& view = unit.layout->views()[segment.view];
    const ParameterGroup* const group = group_of(view.name);
    const float usual = view.has_decay ? options_.weight_decay : 0.0f;
    ranges.push_back({segment.shard_offset, segment.count,
                      group != nullptr ? group->weight_decay.value_or(usual) : usual,
                      group != nullptr ? group->lr_scale : 1.0f, unit.parameters[segment.view],
                      unit.rounding_of(segment), segment.view});
  }
  return ranges;
}

}  // namespace zs
