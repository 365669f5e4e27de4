#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "runtime/tensor/context.h"

namespace zs {

/// Updates of units that an optimizer has deferred to the next forward: each is enqueued when its unit is gathered
/// first, so that what the host keeps of the next unit comes while this one computes. All are by the end of the next
/// micro-batch. Owned by an Executor; one host thread uses it. On return from every function: enqueued, not done.
class DeferredUpdates {
 public:
  /// Enqueues the update of a unit, and records FlatParameter::updated after it. `next`: whose is enqueued after it,
  /// where one is deferred.
  using Update = std::function<void(int unit, std::optional<int> next)>;

  explicit DeferredUpdates(Context& context) : context_(context) {}

  /// Defers the units' updates, in the order in which the units were gathered since the last time, or, where they were
  /// not, as given.
  void defer(std::vector<int> units, Update update);
  /// A gather of the unit is about to be enqueued: its update comes before, and those queued ahead of it.
  void before_gather(int unit);
  /// Makes all that are deferred: before the state is read or written otherwise than by gathers.
  void settle();

 private:
  void update_next();

  Context& context_;
  std::vector<int> gathered_;  // since the last time, in order
  std::vector<int> due_;       // the last is next
  Update update_;
};

}  // namespace zs
