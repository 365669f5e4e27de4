#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <typeindex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/base/buffer.h"
#include "runtime/base/check.h"

namespace zs {

class CudaContext;
class UploadRing;

/// One device has one stream per role. Only the compute stream owns a team of threads.
/// `reduce` carries the first step of every gradient's reduction, `finish` its second one.
enum class StreamRole : std::uint8_t { compute, unshard, reduce, finish, offload };
inline constexpr int kStreamRoles = 5;
constexpr const char* name_of(StreamRole role) {
  switch (role) {
    case StreamRole::compute: return "compute";
    case StreamRole::unshard: return "unshard";
    case StreamRole::reduce: return "reduce";
    case StreamRole::finish: return "finish";
    case StreamRole::offload: return "offload";
  }
  return "?";
}

/// Name of enqueued work, and every buffer that it reads and writes. The declaration feeds the trace and the order
/// verifier; in TSan builds the ranges are touched in instrumented code right before the work runs.
struct OpInfo {
  std::string name;
  std::vector<Buffer> reads = {};
  std::vector<Buffer> writes = {};
  /// The most that the op asks of ExecContext::scratch; contents do not outlast the op
  std::int64_t scratch_bytes = 0;
  std::int64_t pinned_bytes = 0;  ///< the most that the op asks of ExecContext::pinned
  /// Buffers that others than this device's streams have written by the time the op is done: to the verifier a write,
  /// though the op writes nothing itself.
  std::vector<Buffer> arrivals = {};
};

/// Memory that a stream has reserved for one op, u8.
struct OpMemory {
  Buffer scratch, pinned;
};

/// Execution context that work sees while it runs. Lives as long as its stream and is used by that stream's thread
/// only.
class ExecContext {
 public:
  ExecContext(int threads, void* native_stream, const CudaContext* gpu = nullptr, UploadRing* uploads = nullptr)
      : threads_(threads), native_stream_(native_stream), gpu_(gpu), uploads_(uploads) {}

  /// Team size that the work may use (always 1 except on the compute stream).
  int threads() const { return threads_; }
  /// The back end's stream handle (cudaStream_t); null on the CPU.
  void* native_stream() const { return native_stream_; }
  /// Context of a CUDA device; only for work on a stream of one.
  const CudaContext& gpu() const;
  /// Ring through which the host's memory reaches the GPU; only for work on a stream of a CUDA device.
  UploadRing& uploads() const;
  /// One T per stream, made on first use: where libraries keep engines and primitive caches.
  template <class T>
  T& state() {
    auto& slot = states_[std::type_index(typeid(T))];
    if (!slot) slot = std::make_shared<T>();
    return *static_cast<T*>(slot.get());
  }

  /// Working memory for the op that runs, 64-byte aligned, its contents undefined: counted memory of the stream, at
  /// most what the op declared. Where work runs without a stream (a CPU kernel called by hand) it is the context's own
  /// and grows; a GPU cannot read that.
  void* scratch(std::int64_t bytes);
  /// Working memory for kernels, beside what an op declares: ops of a CUDA device's compute stream have
  /// kWorkspaceBytes.
  void* workspace(std::int64_t bytes);
  static constexpr std::int64_t kWorkspaceBytes = std::int64_t{4} << 20;

  /// Memory of the host, page-locked where there is a GPU, that the op which runs has declared (OpInfo::pinned_bytes).
  /// It stays when the op has been enqueued; the stream's next op that has some gets the same. Needs a stream.
  void* pinned(std::int64_t bytes) const;

  /// Sets what the op's OpInfo declared, and the workspace. Called by the stream before each op; by whoever calls a
  /// GPU's kernel without a stream, once.
  void set_memory(const OpMemory& memory, const Buffer& workspace = {}) {
    scratch_ = memory.scratch;
    pinned_ = memory.pinned;
    workspace_ = workspace;
    has_memory_ = true;
  }

 private:
  Buffer grow(std::vector<std::byte>& own, std::int64_t bytes) const;

  int threads_;
  void* native_stream_;
  const CudaContext* gpu_;
  UploadRing* uploads_;
  bool has_memory_ = false;
  Buffer scratch_, pinned_, workspace_;
  std::vector<std::byte> own_scratch_, own_workspace_;
  std::unordered_map<std::type_index, std::shared_ptr<void>> states_;
};

using Work = std::function<void(ExecContext&)>;

/// Record that one Stream::record() left behind; defined by the back end. Counts the host's handles with a plain
/// integer: an atomic count shared with stream threads (std::shared_ptr) would order them behind ThreadSanitizer's back
/// and hide a missing event. Host thread only, except where a back end says otherwise.
class EventRecord {
 public:
  EventRecord(const EventRecord&) = delete;
  EventRecord& operator=(const EventRecord&) = delete;
  /// Unique within the device; what the trace calls it.
  virtual std::int64_t id() const = 0;

 protected:
  EventRecord() = default;
  virtual ~EventRecord() = default;

 private:
  friend class Event;
  /// The last handle is gone. The record may still be in use by streams.
  virtual void retire() noexcept = 0;
  int handles_ = 0;
};

/// Vector clock, kept by the host: for each stream, how many of its records come before a point.
using StreamClock = std::array<std::int64_t, kStreamRoles>;

/// A point in a stream. Semantics are CUDA's: a wait binds to the latest record at the time of the call, waiting for an
/// event that was never recorded is a no-op, recording again is legal. A copyable handle; one host thread uses it
/// (never capture one in work). May outlive its device.
class Event {
 public:
  Event() = default;
  Event(const Event& other) noexcept : source_(other.source_), clock_(other.clock_) { adopt(other.latest_); }
  Event(Event&& other) noexcept
      : latest_(std::exchange(other.latest_, nullptr)), source_(other.source_), clock_(other.clock_) {}
  Event& operator=(Event other) noexcept {
    std::swap(latest_, other.latest_);
    source_ = other.source_;
    clock_ = other.clock_;
    return *this;
  }
  ~Event() { drop(); }

  bool is_recorded() const { return latest_ != nullptr; }
  /// True if `other`, an event of the same stream, was recorded later.
  bool is_before(const Event& other) const {
    const auto source = static_cast<std::size_t>(source_);
    return clock_[source] < other.clock_[source];
  }
  /// True if waiting for this event makes it unnecessary to wait for `other`, an event of any stream of the device.
  bool implies(const Event& other) const {
    const auto source = static_cast<std::size_t>(other.source_);
    return other.clock_[source] <= clock_[source];
  }
  /// Id of the latest record, as in the trace; -1 when there is none.
  std::int64_t id() const { return latest_ ? latest_->id() : -1; }

 private:
  friend class Stream;
  void adopt(EventRecord* record) noexcept {
    if (record) ++record->handles_;
    drop();
    latest_ = record;
  }
  void drop() noexcept {
    if (latest_ && --latest_->handles_ == 0) latest_->retire();
    latest_ = nullptr;
  }

  EventRecord* latest_ = nullptr;
  StreamRole source_ = StreamRole::compute;
  StreamClock clock_{};  // clock of the source, when it recorded
};

/// A FIFO of work on a device. `enqueue`, `record` and `wait` return when the work is enqueued, not when it is done;
/// events are the only order between streams, and only streams of one device wait for each other. One host thread
/// drives a device's streams. The first exception that work throws poisons the stream: later work is skipped, waits on
/// its later events are poisoned too, and the next synchronize (of this stream or of one that waited for it) throws it
/// again. After that synchronize the stream is usable again; events recorded before it poison nobody any more.
///
/// As few events as there can be: a wait reaches the back end with the next work, record or synchronize, if nothing
/// else that the stream has waited for implies it by then, directly or by way of other streams; two records with
/// nothing between them are one.
class Stream {
 public:
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  virtual StreamRole role() const = 0;
  /// Work must not capture std::shared_ptr or other atomically counted owners that the host shares (see EventRecord):
  /// it captures Buffers and values. It is destroyed on the stream, whether it ran or was skipped.
  void enqueue(OpInfo info, Work work);
  void record(Event& event);
  void wait(const Event& event);
  /// Blocks the host until all work enqueued so far is done; throws the first exception of that work, once. Throws
  /// SyncTimeout after the device's sync_timeout_s.
  void synchronize();

 protected:
  Stream() = default;
  /// Working memory for the op that is enqueued next: may make the stream wait and record.
  virtual OpMemory reserve(const OpInfo& info) = 0;
  virtual void do_enqueue(OpInfo info, Work work, const OpMemory& memory) = 0;
  virtual EventRecord* do_record() = 0;
  virtual void do_wait(EventRecord& record) = 0;
  virtual void do_synchronize() = 0;

 private:
  void flush_waits();

  StreamClock clock_{};
  std::vector<Event> waits_;  // asked for, and not yet known to the back end
  Event last_record_;         // is_recorded: of what is enqueued now
};

/// A stream did not finish in time; the message names what every busy stream was running.
class SyncTimeout final : public Error {
 public:
  using Error::Error;
};

}  // namespace zs
