#pragma once

#include <string>
#include <utility>

#include "comm/world.h"
#include "runtime/device/device.h"

namespace zs {

class ProductChoices;

/// The algorithms of products on GPUs, where `cuda.tune_products` chooses them by time: what the first rank has found
/// in the first step, on every rank from the second one on, so that a sample's gradient has the same bits wherever it
/// is computed. Of a device that times nothing: nothing. Outlived by device and world; one host thread uses it.
class ProductTuning {
 public:
  /// Attribute of a checkpoint that holds what was chosen.
  static constexpr const char* kAttribute = "products.algorithms";

  ProductTuning(Device& device, World& world);

  /// Collective, before the first step: takes what chosen() was in the run that goes on. Products that it lacks are
  /// timed as in a new run; all of them where it is for another GPU or library than some rank's.
  void restore(const std::string& saved);
  /// Called after a step, when the device has done it. Collective.
  void after_step();
  /// Choices for a checkpoint, the same on every rank; empty: nothing is chosen.
  const std::string& chosen() const { return chosen_; }
  /// A line to tell, once. Empty: nothing new.
  std::string take_message() { return std::exchange(message_, {}); }

 private:
  /// Adopts the choices if they can be used on all ranks; true if so. The message: `taken` and what it comes to, or
  /// `refused` and why.
  bool adopt(const std::string& text, const char* taken, const char* refused);

  World& world_;
  ProductChoices* const choices_;  // null: nothing is timed
  std::string chosen_, message_;
};

}  // namespace zs
