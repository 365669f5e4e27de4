#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device/cuda_context.h"

namespace zs {

/// Pinned memory of the host through which uploads go to one GPU: the driver copies from ordinary memory only
/// after it has copied it to such memory itself, at a time of its own choice. A piece is free again when the GPU has
/// passed the event after its copy. Pieces are used in turn. Owned by the device; host thread only; dies after the
/// streams' work.
class UploadRing {
 public:
  /// `timeout_s`: for the GPU, where all is in use; 0: no limit.
  UploadRing(const CudaContext& context, double timeout_s) : context_(context), timeout_s_(timeout_s) {}
  ~UploadRing();
  UploadRing(const UploadRing&) = delete;
  UploadRing& operator=(const UploadRing&) = delete;

  /// Functions that are called while the host waits for the GPU: `check` throws what has gone wrong on the streams,
  /// which ends the wait, and `activity` says what they do, for the error of a wait that is too long.
  struct Streams {
    std::function<void()> check = [] {};
    std::function<std::string()> activity = [] { return std::string(); };
  };
  /// Starts the ring, before the first upload. `memory`: of PinnedMemory, whose only user this is.
  void start(Memory memory, Streams streams);
  /// Stops the ring after the last upload, while the streams live: the memory may still be read from.
  void stop() noexcept { memory_.reset(); }

  /// Enqueues out := `in`, as many bytes of the host's memory, which may change once this returns. The context is
  /// current.
  void upload(CUstream_st* stream, const Buffer& out, const void* in);
  /// Refuses uploads from now on, or no more: work that is captured would repeat their values.
  void refuse(bool refuses) { refuses_ = refuses; }

 private:
  struct Piece {
    std::int64_t offset;
    CUevent_st* passed;
  };
  std::byte* take(std::int64_t bytes);
  bool fits(std::int64_t bytes);
  void forget_passed();
  void await_oldest() const;
  CUevent_st* take_event();

  const CudaContext& context_;
  const double timeout_s_;
  Streams streams_;
  Memory memory_;
  std::int64_t bytes_ = 0;  // bytes of it
  bool refuses_ = false;
  std::int64_t next_ = 0;     // offset
  std::deque<Piece> pieces_;  // in use, oldest first
  std::vector<CUevent_st*> unused_;
};

}  // namespace zs
