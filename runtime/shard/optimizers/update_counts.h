#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/shard/execute/executor.h"

namespace zs {

/// Numbers of updates of each parameter, on the device, which knows what it skips, and what does not come to its end.
/// Owned by an Optimizer; one host thread uses it.
class UpdateCounts {
 public:
  /// One count for each parameter of each unit.
  using Progress = std::vector<std::vector<UpdateCount>>;
  /// Slot of a parameter's scalars in the last update; kNone: that was not of it.
  using SlotOf = std::function<std::int64_t(std::size_t unit, std::size_t parameter)>;
  static constexpr std::int64_t kNone = -1;
  static constexpr std::int64_t kScalars = sizeof(StepScalars) / sizeof(float);

  /// Makes them, all 0. Parameters that are updated with the same scalars, as their `lr_scales` say by unit, lie one
  /// after the other.
  void make(const Executor& executor, const std::vector<std::vector<float>>& lr_scales);
  /// f64: all counts, and one of them.
  Buffer all() const { return memory_.buffer(DType::f64, parameters_ * kElems); }
  Buffer of(std::size_t unit, std::size_t parameter) const {
    return all().slice(places_[unit][parameter] * kElems, kElems);
  }
  /// Counts an update, unless the scalars of its slots say that it is skipped; enqueued on compute.
  void count(const SlotOf& slot_of, const Buffer& scalars) const;
  /// The work of `count` is enqueued, or is replayed.
  void note(const SlotOf& slot_of);
  /// Hash of the updates so far, skipped or not: where it is the same, so is the count.
  std::uint64_t history(std::size_t unit, std::size_t parameter) const { return histories_[unit][parameter]; }
  /// True if any update was enqueued.
  bool was_updated(std::size_t unit, std::size_t parameter) const { return was_updated_[unit][parameter]; }
  std::int64_t place(std::size_t unit, std::size_t parameter) const { return places_[unit][parameter]; }

  /// The counts as they are: steps that were skipped are not among them. Waits for the device.
  Progress read() const;
  std::int64_t updates(std::size_t unit, std::size_t parameter) const {
    return static_cast<std::int64_t>(read().at(unit).at(parameter).updates);
  }
  /// Sets them, as a load does.
  void set(const Progress& progress);

 private:
  static constexpr std::int64_t kElems = sizeof(UpdateCount) / sizeof(double);

  const Context* context_ = nullptr;
  Memory memory_;
  std::int64_t parameters_ = 0, noted_ = 0;
  std::vector<std::vector<std::int64_t>> places_;  // these by unit and parameter
  std::vector<std::vector<std::uint64_t>> histories_;
  std::vector<std::vector<bool>> was_updated_;
};

}  // namespace zs
