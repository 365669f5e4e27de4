#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "model/data/sample_batch.h"

namespace zs {

/// Reads micro-batches before they are asked for, on a thread of its own: those that begin with the samples `first`,
/// next(first), and so on up to `end`, at most `depth` of them ahead. One thread takes them.
class ReadAhead {
 public:
  struct Range {
    std::int64_t first;
    std::function<std::int64_t(std::int64_t first)> next;
    std::int64_t end;
  };

  /// The first one is read from here on. `read` is called by the thread.
  ReadAhead(ReadSamples read, Range range, std::size_t depth);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// Takes the batch that begins with sample `first`; from here on those after it are read. Where it is not the next
  /// one, reading begins anew with it. Throws what `read` threw of it.
  SampleBatch take(std::int64_t first);
  /// Time for which take() has waited because what was asked for had not been read.
  std::int64_t waited_ns() const { return waited_ns_; }

 private:
  struct Slot {
    SampleBatch batch;
    std::exception_ptr problem;
  };
  void work();
  void wait_for_front(std::unique_lock<std::mutex>& lock);

  const ReadSamples read_;
  const std::function<std::int64_t(std::int64_t first)> after_;
  const std::int64_t end_;
  const std::size_t depth_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Slot> ready_;        // samples that are read, from front_ on
  std::int64_t front_, next_;     // the first of ready_, and the next to read
  std::uint64_t generation_ = 0;  // generation of front_: what was read for another one is dropped
  bool is_stopped_ = false;
  std::int64_t waited_ns_ = 0;  // the taker's own
  std::thread thread_;
};

}  // namespace zs
