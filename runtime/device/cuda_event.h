#pragma once

#include <atomic>
#include <cstdint>
#include <exception>

#include "runtime/device/cuda_context.h"
#include "runtime/device/event_pool.h"

namespace zs {

class CudaStream;

/// One record() on a CUDA stream: an event of the driver, and the error that the stream had by then. The driver binds
/// waits to the latest record itself, so an event is recorded again as soon as no handle is left and its own stream's
/// progress no longer asks for it.
class CudaEventRecord final : public EventRecord {
 public:
  CudaEventRecord() = default;

  /// Host: a fresh record number `id`, the `position`-th entry of `stream`, which has failed with `error` (null: has
  /// not), made in the `capture`-th capture (0: in none).
  void start(std::int64_t id, const CudaStream& stream, std::uint64_t position, std::exception_ptr error, int capture);
  /// Host: made on first use; until `destroy`.
  CUevent_st* event(const CudaContext& context);
  void destroy(const CudaContext& context) noexcept;
  /// Any thread: whether the GPU has passed it. An error of the driver is no.
  bool is_passed(const CudaContext& context) const noexcept;
  /// Any thread: the stream's progress no longer asks for it.
  void end_use() noexcept { is_in_use_.store(false, std::memory_order_release); }

  std::int64_t id() const override { return id_; }
  const CudaStream& stream() const { return *stream_; }
  std::uint64_t position() const { return position_; }
  const std::exception_ptr& error() const { return error_; }
  int capture() const { return capture_; }

 private:
  friend class EventPool<CudaEventRecord>;
  void retire() noexcept override { pool_->retire(*this); }
  bool is_unused() const { return !is_in_use_.load(std::memory_order_acquire); }
  static bool may_serve_again() { return true; }

  EventPool<CudaEventRecord>* pool_ = nullptr;
  CUevent_st* event_ = nullptr;
  std::atomic<bool> is_in_use_{false};
  std::int64_t id_ = -1;
  const CudaStream* stream_ = nullptr;
  std::uint64_t position_ = 0;
  std::exception_ptr error_;
  int capture_ = 0;
};

using CudaEventPool = EventPool<CudaEventRecord>;

}  // namespace zs
