#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/inline_stream.h"
#include "comm/world.h"

namespace zs {

/// Tells the other ranks of a communicator what this one has launched on its GPU, in order, and hears what they have:
/// on a thread of its own, after the launches. For a transport that compares nothing itself. Ranks that disagree, or
/// do not come in time, are an error. Owned by a communicator over GPUs; the host's thread uses it.
class LaunchOrderCheck {
 public:
  /// `hosts`: the same ranks, with a deadline. `on_failure`: on the thread, at most once.
  LaunchOrderCheck(std::unique_ptr<Communicator> hosts, std::function<void(const std::exception_ptr&)> on_failure);
  ~LaunchOrderCheck();
  LaunchOrderCheck(const LaunchOrderCheck&) = delete;
  LaunchOrderCheck& operator=(const LaunchOrderCheck&) = delete;

  void add(const OpTag& tag);
  /// Blocks until all that was added has been compared, or something has failed: not longer than the hosts' deadline
  /// for each.
  void finish();

 private:
  void run(const std::stop_token& stop);
  void compare(const OpTag& tag);

  std::unique_ptr<Communicator> hosts_;
  InlineStream stream_;
  std::function<void(const std::exception_ptr&)> on_failure_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<OpTag> tags_;  // the first one is being compared
  bool has_failed_ = false;
  std::jthread thread_;
};

}  // namespace zs
