#pragma once

#include <memory>
#include <string>

#include "runtime/shard/checkpoint/checkpoint.h"

namespace zs {

/// A save whose files a thread writes while training goes on. What this rank writes is copied first, to memory that the
/// caller has; from then on the state may change. ROOT/step-N appears in `finish`: until then, and where it fails,
/// older checkpoints stay as they are. One host thread uses it; TrainingState and the watch outlive it.
class BackgroundSave {
 public:
  /// Largest size of the copy on this rank, in bytes. `with_frozen`: CheckpointInfo's.
  static std::int64_t held_bytes(const Executor& executor, const Optimizer& optimizer, bool with_frozen = true);

  /// Begins a save, as save(), but returns when the copy is made. `held` (u8) is nobody else's until this ends. Throws
  /// AgreedError: nothing is saved, what was written is removed.
  BackgroundSave(const TrainingState& state, const std::string& root, const CheckpointInfo& info, FileWatch* watch,
                 const Buffer& held);
  /// Ends it. Without `finish` nothing was saved: what was written so far stays under its other name, for the next save
  /// to remove.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  /// True while this rank's thread is at work.
  bool is_writing() const;
  /// Duration of this rank's writing in seconds, once it is over.
  double writing_s() const;
  /// Waits for the threads of all ranks, and makes a checkpoint of what they wrote; its path. Once. Collective; blocks.
  /// Throws AgreedError: nothing was saved, and what was written is removed.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace zs
