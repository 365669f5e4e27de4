#pragma once

#include <algorithm>
#include <memory>
#include <vector>

namespace zs {

/// Something that work on a GPU's stream has begun and that may go wrong behind the stream's back: asked while the host
/// waits for the stream. Host thread.
class StreamWatch {
 public:
  virtual ~StreamWatch() = default;
  /// Throws what has gone wrong so far; then the stream ends soon.
  virtual void check() = 0;
  /// The stream has ended: throws what has gone wrong until then. May wait for those who tell.
  virtual void finish() = 0;
};

/// Watches of one stream, and what they have to know of it: its ExecContext::state.
class StreamWatches {
 public:
  /// True if what the stream is given becomes part of a graph.
  bool are_captured() const { return are_captured_; }
  void set_captured(bool captured) { are_captured_ = captured; }

  /// Adds a watch, from now on, as long as it lives.
  void add(const std::shared_ptr<StreamWatch>& watch) {
    std::erase_if(watches_, [](const auto& known) { return known.expired(); });
    const auto is_it = [&](const auto& known) { return known.lock() == watch; };
    if (std::none_of(watches_.begin(), watches_.end(), is_it)) watches_.push_back(watch);
  }
  const std::vector<std::weak_ptr<StreamWatch>>& all() const { return watches_; }

 private:
  std::vector<std::weak_ptr<StreamWatch>> watches_;
  bool are_captured_ = false;
};

}  // namespace zs
