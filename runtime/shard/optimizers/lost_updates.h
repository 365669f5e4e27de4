#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/base/name_pattern.h"
#include "runtime/shard/execute/executor.h"

namespace zs {

/// Effect of an update on the elements of a group of parameters that had a gradient.
struct LostShare {
  std::string group;
  double elems = 0;              ///< number of elements whose gradient was not 0
  double masters = 0;            ///< share of these whose f32 weight is as it was
  std::optional<double> copies;  ///< as `masters`, of the weights that are computed with, where some of these are bf16
  bool operator==(const LostShare&) const = default;
};

/// Counts the updates that are lost in rounding: a step that is smaller than half of a weight's last place leaves it as
/// it is. Of a skipped step all are. Keeps the weights as they were from `begin` to `end`, on the device. Owned by
/// whoever meters; one host thread uses it. On return: enqueued, not done.
class LostUpdates {
 public:
  /// A parameter is of the first pattern that matches its name; those of none are the group "others", or "all" without
  /// patterns. UsageError where the host keeps masters or gradients,
  /// or the optimizer updates in backward.
  LostUpdates(Executor& executor, const std::vector<std::string>& patterns);

  /// Begins the comparison, ahead of an update and after the last micro-batch.
  void begin();
  /// Ends the comparison, after the update. Collective.
  void end();
  /// Shares of the last update that was metered, groups without elements left out. Waits for the device.
  std::vector<LostShare> shares() const;

 private:
  struct Kept {
    std::size_t unit;
    Memory master, copy;
  };
  enum Column : std::size_t { elems, masters, copies, kColumns };
  /// Elements of one group, as they were and as they are.
  struct Part {
    Buffer before, now, copy_before, copy_now;
    std::size_t group;
  };
  std::size_t group_of(const std::string& name) const;
  std::vector<Part> parts_of(const Kept& kept) const;
  void count(const Kept& kept);
  Buffer counts() const;

  Executor& executor_;
  std::vector<NamePattern> patterns_;
  std::vector<std::string> groups_;
  std::vector<Kept> kept_;  // between begin and end
  Memory counts_;           // f32, by group and column; integers, rounded
};

}  // namespace zs
