#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/device/cuda_progress.h"
#include "runtime/device/cuda_times.h"
#include "runtime/device/device.h"
#include "runtime/device/stream_watch.h"
#include "runtime/device/upload_ring.h"

namespace zs {

class CudaStream;

/// State that the streams of one CUDA device share. Host thread only, but for `context`.
struct CudaStreamGroup {
  const DeviceOptions options;
  Trace& trace;
  Scratch& scratch;
  PinnedMemory& pinned;
  const CudaContext& context;
  UploadRing& uploads;
  Profile& profile;
  CudaClock clock{context};
  CudaEventPool::Owner events = CudaEventPool::create();
  std::vector<CudaStream*> streams = {};  ///< to say what each was doing when one does not finish
  std::int64_t next_record_id = 0;
  int capture = 0, captures = 0;  ///< the one under way (0: none), and how many there were
  bool timed_out = false;
  std::exception_ptr last_thrown = nullptr;  ///< an error that synchronize has thrown is not logged again
  bool is_loss_told = false;                 ///< nor that the context is lost, which every stream finds out

  /// Activity of the streams that are not idle. Any thread.
  std::string activity() const;
};

/// A stream of the driver. Work runs on the host as it is enqueued, and enqueues what the GPU shall do on
/// ExecContext::native_stream. So an exception of the work poisons the stream at once. What goes wrong on the GPU shows
/// in some later call of the driver: that error names the op enqueued last, and how far the stream had come.
///
/// Owned by its device; `stop` comes before destruction.
class CudaStream final : public Stream {
 public:
  CudaStream(StreamRole role, CudaStreamGroup& group);
  ~CudaStream() override;

  StreamRole role() const override { return role_; }

  /// Waits for what is enqueued and logs an error nobody has seen. False when that takes longer than `limit_s` (0: no
  /// limit): then this object must never be destroyed.
  bool stop(double limit_s) noexcept;
  CUstream_st* native() const { return stream_; }
  /// Takes the error that has poisoned the stream, which nobody else will throw.
  std::exception_ptr take_error() noexcept;
  /// Throws what has gone wrong behind the stream's back so far (StreamWatch::check).
  void check_watches() const { throw_of_watches(&StreamWatch::check); }
  /// Throws what has gone wrong in all that was captured (StreamWatch::finish).
  void finish_watches() const { throw_of_watches(&StreamWatch::finish); }
  /// Says if what the stream is given from now on becomes part of a graph.
  void set_captured(bool captured) { exec_->state<StreamWatches>().set_captured(captured); }
  /// Any thread.
  std::string activity() { return progress_.activity(); }
  std::uint64_t completed() { return progress_.completed(); }

 protected:
  /// Reserves the scratch that the op asks for, with the kernels' workspace after it.
  OpMemory reserve(const OpInfo& info) override;
  void do_enqueue(OpInfo info, Work work, const OpMemory& memory) override;
  void do_synchronize() override;
  EventRecord* do_record() override;
  void do_wait(EventRecord& record) override;

 private:
  std::int64_t workspace_bytes() const { return role_ == StreamRole::compute ? ExecContext::kWorkspaceBytes : 0; }
  void note(TraceEntry::Kind kind, std::int64_t record_id) const;
  /// Runs `body` unless the stream is poisoned; what it throws poisons the stream.
  template <class Body>
  void guarded(const Body& body) noexcept;
  void check(int status, const char* call);
  /// "GPU 0 (NVIDIA H200), stream 'compute', last enqueued: adamw; compute: after sum, up to adamw": for an error.
  std::string where_now();
  /// `error` has been thrown or logged.
  void told(const std::exception_ptr& error) noexcept;
  bool is_told(const std::exception_ptr& error) const noexcept;
  /// False when it takes longer than `limit_s` (0: no limit).
  bool await_end(double limit_s);
  /// Asks the watches; the first error that one throws becomes the failure, unless there is one.
  void ask_watches(void (StreamWatch::*question)(), std::exception_ptr& failure) const;
  void throw_of_watches(void (StreamWatch::*question)()) const;

  const StreamRole role_;
  CudaStreamGroup& group_;
  CUstream_st* stream_ = nullptr;
  CudaProgress progress_;
  CudaTimes times_;
  std::unique_ptr<ExecContext> exec_;
  std::uint64_t appended_ = 0, synchronized_ = 0;
  std::exception_ptr error_;
};

}  // namespace zs
