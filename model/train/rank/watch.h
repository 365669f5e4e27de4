#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "comm/health/watchdog.h"
#include "comm/world.h"
#include "model/train/config/config.h"
#include "runtime/shard/checkpoint/checkpoint_io.h"

namespace zs {

/// The limits of `[watchdog]`, with the program's own lines.
WatchOptions watch_options(const Config& config);

/// Watch of a rank: what a trainer tells its rank's watchdog, which may be missing (one rank without mpirun). A value.
class RankWatch {
 public:
  explicit RankWatch(World& world) : watchdog_(world.watchdog()) {}

  void enter(Phase phase, std::int64_t step = 0) const {
    if (watchdog_ != nullptr) watchdog_->enter(phase, step);
  }
  bool hit(std::string_view fault) const { return watchdog_ != nullptr && watchdog_->faults().hit(fault); }
  /// Makes records go to the run's folder from here on, and the line say how to go on.
  void run_in(const std::string& run_dir, const std::string& resume_hint) const;
  /// The run is over, and its weights are there.
  void finished() const;
  /// A checkpoint of this step is there.
  void saved(std::int64_t step) const;
  /// Writes the record, where ranks have to be compared.
  void dump(std::string_view reason) const {
    if (watchdog_ != nullptr) watchdog_->dump(reason);
  }
  Watchdog* watchdog() const { return watchdog_; }

 private:
  Watchdog* watchdog_;
};

/// Tells of the writing of a checkpoint: fault points ckpt.create, ckpt.write, ckpt.sync, ckpt.rename ...
class CheckpointWatch final : public FileWatch {
 public:
  /// `in_background`: by another thread than the host's, of whose work others know nothing.
  explicit CheckpointWatch(const RankWatch& watch, bool in_background = false)
      : watch_(watch), in_background_(in_background) {}
  void before(FileOp op, const std::string& path) override;
  /// Number of changes so far. Any thread.
  std::int64_t changes() const { return changes_; }

 private:
  RankWatch watch_;
  bool in_background_;
  std::atomic<std::int64_t> changes_ = 0;
};

}  // namespace zs
