#pragma once

#include <atomic>
#include <cstdint>
#include <exception>

#include "runtime/device/event_pool.h"

namespace zs {

class CpuStream;

/// The completion of one record() on a CPU stream: the recording stream's thread releases it, waiting streams' threads
/// acquire it, and nothing else about it orders threads. Lives in a CpuEventPool and is used again once no handle and
/// no stream needs it; the host finds that out with relaxed loads, so stream-side state is atomic, or set only once
/// (`error_`).
class CpuEventRecord final : public EventRecord {
 public:
  CpuEventRecord() = default;

  /// Host: a fresh record number `id`, the `position`-th entry of `stream`, with one stream-side user (the recorder).
  void start(std::int64_t id, const CpuStream& stream, std::uint64_t position);
  /// Host: one more stream will await this record.
  void add_user() { users_.fetch_add(1, std::memory_order_relaxed); }

  std::int64_t id() const override { return id_; }
  const CpuStream& stream() const { return *stream_; }
  std::uint64_t position() const { return position_; }

  /// Recording stream's thread, once; ends its use of the record.
  void complete(std::exception_ptr error) noexcept;
  /// Waiting stream's thread: blocks until complete, returns the error (null: none), ends its use of the record.
  std::exception_ptr await() noexcept;

 private:
  friend class EventPool<CpuEventRecord>;
  enum State : std::uint32_t { pending, done, failed };
  void retire() noexcept override { pool_->retire(*this); }
  bool is_unused() const;
  /// A failed record keeps its exception until the threads have ended: clearing it earlier would race with them.
  bool may_serve_again() const { return state_.load(std::memory_order_relaxed) != failed; }
  void end_use() noexcept { users_.fetch_sub(1, std::memory_order_release); }

  std::atomic<std::uint32_t> state_{pending}, sleepers_{0}, users_{0};
  std::exception_ptr error_;  // written before `failed` is released; such a record is not used again
  // Host only.
  EventPool<CpuEventRecord>* pool_ = nullptr;
  std::int64_t id_ = -1;
  const CpuStream* stream_ = nullptr;
  std::uint64_t position_ = 0;
};

using CpuEventPool = EventPool<CpuEventRecord>;

}  // namespace zs
