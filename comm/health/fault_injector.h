#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace zs {

/// Points of the program where a test may have something go wrong: TRAIN_FAULT="data.load@rank=2,hit=3:stop" in the
/// environment, several separated by ';'. Points: docs/testing.md lists them. Actions: kill, stop, abort, segv, throw,
/// exit=N, delay=MS, return. Without `rank` on every rank, without `hit` each time; `hit=N` is the N-th time. Any
/// thread. Owned by a Watchdog.
class FaultInjector {
 public:
  /// `text` as in the variable; Error(usage) where it is not understood. Only those of `rank` are kept.
  FaultInjector(std::string_view text, int rank);
  /// Faults that TRAIN_FAULT names.
  static FaultInjector from_environment(int rank);

  bool any() const { return !points_.empty(); }
  bool has(std::string_view point) const;
  /// The program has come to this point. True: the caller shall return from its work; few points have a use for that.
  bool hit(std::string_view point) { return any() && do_hit(point); }

 private:
  struct Point {
    std::string name, action = {};
    long wanted_hit = 0, value = 0;
    std::shared_ptr<std::atomic<long>> hits = std::make_shared<std::atomic<long>>(0);
  };
  bool do_hit(std::string_view point);

  std::vector<Point> points_;
};

}  // namespace zs
