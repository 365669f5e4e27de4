#include "model/data/read_ahead.h"

#include <chrono>
#include <utility>

#include "runtime/base/check.h"

namespace zs {

ReadAhead::ReadAhead(ReadSamples read, Range range, std::size_t depth)
    : read_(std::move(read)),
      after_(std::move(range.next)),
      end_(range.end),
      depth_(depth),
      front_(range.first),
      next_(range.first) {
  ZS_CHECK(depth_ >= 1, "{} micro-batches ahead", depth_);
  thread_ = std::thread([this] { work(); });
}

ReadAhead::~ReadAhead() {
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ReadAhead::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return is_stopped_ || (ready_.size() < depth_ && next_ < end_); });
    if (is_stopped_) return;
    const std::int64_t first = next_;
    const std::uint64_t generation = generation_;
    lock.unlock();
    Slot slot;
    try {
      slot.batch = read_(first);
    } catch (...) {
      slot.problem = std::current_exception();
    }
    lock.lock();
    if (generation != generation_) continue;
    ready_.push_back(std::move(slot));
    next_ = after_(first);
    changed_.notify_all();
  }
}

void ReadAhead::wait_for_front(std::unique_lock<std::mutex>& lock) {
  if (!ready_.empty()) return;
  const auto start = std::chrono::steady_clock::now();
  changed_.wait(lock, [&] { return !ready_.empty(); });
  waited_ns_ += std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
}

SampleBatch ReadAhead::take(std::int64_t first) {
  ZS_CHECK(first < end_, "samples from {} on, of those before {}", first, end_);
  std::unique_lock lock(mutex_);
  if (first != front_) {
    ++generation_;
    ready_.clear();
    front_ = next_ = first;
    changed_.notify_all();
  }
  wait_for_front(lock);
  Slot slot = std::move(ready_.front());
  ready_.pop_front();
  front_ = after_(front_);
  lock.unlock();
  changed_.notify_all();
  if (slot.problem) std::rethrow_exception(slot.problem);
  return std::move(slot.batch);
}

}  // namespace zs
