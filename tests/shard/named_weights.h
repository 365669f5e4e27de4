#pragma once

#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "runtime/shard/execute/executor.h"

namespace zs::test {

/// Whole parameters by their names.
using Weights = std::map<std::string, std::vector<float>>;

/// The master weights of every unit. Collective.
inline Weights weights_of(Executor& executor) {
  Weights weights;
  for (int unit = 0; unit < std::ssize(executor.units()); ++unit) {
    executor.read_full(unit, [&](const Parameter& parameter, const float* values) {
      weights[parameter.name()].assign(values, values + parameter.numel());
    });
  }
  return weights;
}

/// "root: head; link0: link0.weight link0.bias; ": what each unit owns.
inline std::string units_of(const Executor& executor) {
  std::string text;
  for (const FlatParameter& unit : executor.units()) {
    text += unit.name + ":";
    for (const Parameter* parameter : unit.parameters) text += " " + parameter->name();
    text += "; ";
  }
  return text;
}

}  // namespace zs::test
