#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "runtime/device/stream.h"

namespace zs {

/// Owns the records of one device's streams. Host thread only. Its owner closes it after the streams have ended; it
/// deletes itself when the last Event handle is gone too.
///
/// A Record is an EventRecord whose `retire` calls the pool's. `is_unused`: no stream needs it; `may_serve_again`,
/// asked of unused ones.
template <class Record>
class EventPool {
 public:
  struct Close {
    void operator()(EventPool* pool) const noexcept { pool->close(); }
  };
  using Owner = std::unique_ptr<EventPool, Close>;
  static Owner create() { return Owner(new EventPool); }

  /// A record that nothing refers to.
  Record& take() {
    while (!retired_.empty() && retired_.front()->is_unused()) {
      if (retired_.front()->may_serve_again()) unused_.push_back(retired_.front());
      retired_.pop_front();
    }
    if (unused_.empty()) {
      records_.emplace_back();
      records_.back().pool_ = this;
      unused_.push_back(&records_.back());
    }
    Record& record = *unused_.back();
    unused_.pop_back();
    ++with_handles_;
    return record;
  }
  /// All that were ever made.
  std::deque<Record>& records() { return records_; }

 private:
  friend Record;
  EventPool() = default;

  void retire(Record& record) noexcept {
    --with_handles_;
    if (!closed_)
      retired_.push_back(&record);
    else if (with_handles_ == 0)
      delete this;
  }
  void close() noexcept {
    closed_ = true;
    if (with_handles_ == 0) delete this;
  }

  std::deque<Record> records_;
  std::vector<Record*> unused_;
  std::deque<Record*> retired_;  // no handles; streams may still need them
  std::int64_t with_handles_ = 0;
  bool closed_ = false;
};

}  // namespace zs
