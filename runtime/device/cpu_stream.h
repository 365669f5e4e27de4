#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "runtime/device/activity.h"
#include "runtime/device/cpu_event.h"
#include "runtime/device/device.h"
#include "runtime/device/profile.h"
#include "runtime/device/scratch.h"
#include "runtime/device/stream.h"
#include "runtime/device/trace.h"

namespace zs {

class CpuStream;

/// State that the streams of one CPU device share. Host thread only, but for `options`, which does not change, and the
/// lists of `profile`. Outlives the threads.
struct CpuStreamGroup {
  const DeviceOptions options;
  Trace& trace;
  Profile profile = {};
  Scratch& scratch;
  PinnedMemory& pinned;
  CpuEventPool::Owner events = CpuEventPool::create();
  std::vector<const CpuStream*> streams = {};  ///< to say what each was doing when one does not finish
  std::int64_t next_record_id = 0;
  bool timed_out = false;
  std::exception_ptr last_thrown = nullptr;  ///< an error that synchronize has thrown is not logged again

  /// "compute: waits for stream 'unshard'; unshard: all_gather:blocks.3": of the streams that are not idle. Any thread.
  std::string activity() const;
};

/// A CPU stream: a thread that runs the nodes of a linked list in order. The host appends nodes and the thread frees
/// them. The happens-before edges are: host -> thread by a node's release, thread -> host in `synchronize` only, thread
/// -> thread by event records only. No lock, no shared atomic count: so TSan reports work whose order rests on luck.
///
/// Owned by its device; `stop` comes before destruction.
class CpuStream final : public Stream {
 public:
  CpuStream(StreamRole role, CpuStreamGroup& group);
  ~CpuStream() override;

  StreamRole role() const override { return role_; }

  /// Ends the thread after what is enqueued and logs an error nobody has seen. False when that takes longer than
  /// `limit_s` (0: no limit): then the thread goes on by itself and this object must never be destroyed.
  bool stop(double limit_s) noexcept;
  /// "idle", or the op that runs, or the stream it waits for. Any thread.
  std::string activity() const { return activity_.get(); }
  /// True if the host waits for it. Any thread.
  bool is_awaited() const { return host_target_.load(std::memory_order_relaxed) != kNobodyWaits; }
  /// Ops, records and waits that are done so far. Any thread.
  std::uint64_t completed() const { return completed_.load(std::memory_order_relaxed); }

 protected:
  OpMemory reserve(const OpInfo& info) override;
  void do_enqueue(OpInfo info, Work work, const OpMemory& memory) override;
  void do_synchronize() override;
  EventRecord* do_record() override;
  void do_wait(EventRecord& record) override;

 private:
  struct Node {
    enum class Kind : std::uint8_t { op, record, wait, stop };
    Kind kind = Kind::stop;
    bool is_timed = false;                     // as the profile was when the host enqueued it
    StreamRole awaited = StreamRole::compute;  // kind == wait
    const char* phase = "";                    // kind == op
    std::int64_t record_id = -1;               // kind == record or wait
    CpuEventRecord* record = nullptr;          // kind == record or wait
    OpInfo info;
    Work work;
    OpMemory memory;
    std::atomic<Node*> next{nullptr};
  };
  static constexpr std::uint64_t kNobodyWaits = ~std::uint64_t{0};

  void append(std::unique_ptr<Node> node);
  bool await_completion(std::uint64_t target, double limit_s);
  [[noreturn]] void throw_timeout();

  // The stream's thread.
  void run() noexcept;
  void prepare_thread();
  Node& await_next(Node& node);
  void execute(Node& node, ExecContext& context) noexcept;
  void run_op(Node& node, ExecContext& context);
  void announce(std::uint64_t completed) noexcept;

  const StreamRole role_;
  CpuStreamGroup& group_;
  // Host.
  Node* tail_;
  std::uint64_t appended_ = 1, synchronized_ = 0;  // the thread's start counts as the first node
  std::thread thread_;
  // Thread; the host touches error_ only while the thread is idle and acquired.
  Node* head_;
  std::exception_ptr error_;
  std::uint64_t ops_ = 0;
  // Both.
  std::atomic<std::uint32_t> thread_sleeps_{0}, host_sleeps_{0};
  std::atomic<std::uint64_t> completed_{0}, host_target_{kNobodyWaits};
  Activity activity_;
};

}  // namespace zs
