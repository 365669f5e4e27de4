#pragma once

#include <vector>

namespace zs {

/// The order in which units run in one micro-batch of one mode. Recorded once, then replayed: `advance` says whether
/// the unit was the expected one, `upcoming` which come next. Pure; known units are numbers 0..n-1 of their scheduler.
class ExecOrder {
 public:
  enum class Phase { forward, backward };

  bool is_recorded() const { return is_recorded_; }
  const std::vector<int>& units(Phase phase) const { return list(phase).units; }

  /// Starts a micro-batch: recording when nothing is recorded yet, otherwise replaying from the start.
  void begin();
  /// Ends it; a recording that saw anything becomes the order.
  void end();

  /// Notes that `unit` runs now. False when replaying and another unit was due; the position then moves past the next
  /// occurrence of `unit`, if there is one.
  bool advance(Phase phase, int unit);
  /// Lists up to `count` units due after the one that runs, each of several turns in a row counted once; none while
  /// recording.
  std::vector<int> upcoming(Phase phase, int count) const;
  /// True if the next turn is this unit's; not while recording.
  bool is_next(Phase phase, int unit) const;

 private:
  struct List {
    std::vector<int> units;
    std::size_t position = 0;
  };
  List& list(Phase phase) { return phase == Phase::forward ? forward_ : backward_; }
  const List& list(Phase phase) const { return phase == Phase::forward ? forward_ : backward_; }

  List forward_, backward_;
  bool is_recorded_ = false;
};

}  // namespace zs
