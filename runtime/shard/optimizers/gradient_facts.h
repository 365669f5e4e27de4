#pragma once

#include <string>
#include <vector>

#include "runtime/shard/execute/executor.h"

namespace zs {

/// Facts about the gradient of a parameter, as it is before clipping.
struct GradientFact {
  std::string parameter, unit;
  double norm = 0, largest = 0;  ///< norm and largest magnitude of its finite elements
  double not_finite = 0;         ///< number of elements that are not
};

/// Gradients of a step, looked at between the last micro-batch and the update. One host thread uses it.
class GradientFacts {
 public:
  /// Why the gradients of these units cannot be looked at; empty: they can.
  static std::string refusal(Executor& executor);

  explicit GradientFacts(Executor& executor) : executor_(executor) {}
  /// Looks at them: enqueues it, and waits. Collective.
  void take();
  /// Facts of every trainable parameter that had a gradient, in the order of the units.
  const std::vector<GradientFact>& facts() const { return facts_; }

 private:
  void look(const FlatParameter& unit);

  Executor& executor_;
  std::vector<GradientFact> facts_;
};

}  // namespace zs
