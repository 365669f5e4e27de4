#pragma once

#include <atomic>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/cudnn.h"
#include "runtime/device/device.h"
#include "runtime/tensor/storage_log.h"

namespace zs {

class OpTrace;

/// Mode in which ops run at this moment. Guards change it for as long as they live.
struct OpMode {
  bool records = true;          ///< for backward
  bool runs_again = false;      ///< inside the second run of a recomputed function
  OpTrace* noted = nullptr;     ///< in the first run of a recomputed function: takes its ops down
  OpTrace* repeated = nullptr;  ///< in the second run, and whatever runs for the first time in it: they come again
  const SavedCheck* saved = nullptr;  ///< in an op's backward
  /// Launches are left out; storage made meanwhile is noted here
  std::vector<std::weak_ptr<const void>>* unfilled = nullptr;
};

/// Place where tensors of one runtime live and run: a device, its compute stream and its kernels, and whether ops
/// record for backward. Owned by the runtime; tensors that outlive it have no elements any more. One host thread uses
/// it.
class Context {
 public:
  explicit Context(Device& device) : device_(device), kernels_(kernels_for(device)) {}
  ~Context() { storages_.end(); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  Device& device() const { return device_; }
  Stream& stream() const { return device_.stream(StreamRole::compute); }
  Pool& pool() const { return device_.pool(); }
  const KernelTable& kernels() const { return kernels_; }
  /// Team size of the compute stream.
  int threads() const { return device_.options().threads; }

  /// Enqueues work on the compute stream. Work captures buffers and scalars by value, never tensors: memory is ordered
  /// by the stream, not by references. Left out where the mode says so.
  void launch(OpInfo info, Work work) const {
    check_thread(info.name);
    if (mode_.unfilled != nullptr) return;
    storages_.note(info, sequence_, mode_.records && mode_.saved == nullptr, mode_.saved);
    stream().enqueue(std::move(info), std::move(work));
  }

  const OpMode& mode() const { return mode_; }
  bool is_grad_enabled() const { return mode_.records; }
  std::uint64_t next_sequence() { return ++sequence_; }
  std::uint64_t last_sequence() const { return sequence_; }
  StorageLog& storages() const { return storages_; }

  /// UsageError of `call` on another thread than the one whose micro-batch is open.
  void check_thread(std::string_view call) const {
    const void* const user = user_.load(std::memory_order_relaxed);
    if (user != nullptr && user != this_thread()) [[unlikely]]
      refuse_thread(call);
  }

 private:
  friend class OpModeGuard;
  static const KernelTable& kernels_for(const Device& device) {
    const bool is_gpu =
        (device.kind() == DeviceKind::meta ? device.options().stands_for : device.kind()) == DeviceKind::cuda;
    if (!is_gpu) return cpu_kernels();
    return device.options().cudnn_attention ? cuda_kernels_with_cudnn() : cuda_kernels();
  }
  friend class ContextClaim;
  /// An address that no other thread has.
  static const void* this_thread() {
    static thread_local const char mark = 0;
    return &mark;
  }
  [[noreturn]] static void refuse_thread(std::string_view call);

  Device& device_;
  const KernelTable& kernels_;
  std::atomic<const void*> user_{nullptr};  // thread of the open claims
  int claims_ = 0;
  OpMode mode_;
  mutable StorageLog storages_;  // launches, which change nothing else here, are noted in it
  std::uint64_t sequence_ = 0;   // creation order of autograd nodes
};

/// Scope in which the thread that begins it alone uses the context; nests.
class ContextClaim {
 public:
  explicit ContextClaim(Context& context) : context_(context) {
    context.user_ = Context::this_thread();
    ++context.claims_;
  }
  ~ContextClaim() {
    if (--context_.claims_ == 0) context_.user_ = nullptr;
  }
  ContextClaim(const ContextClaim&) = delete;
  ContextClaim& operator=(const ContextClaim&) = delete;

 private:
  Context& context_;
};

/// Scope in which ops behave in this mode.
class OpModeGuard {
 public:
  OpModeGuard(Context& context, const OpMode& mode)
      : context_(context), previous_(std::exchange(context.mode_, mode)) {}
  ~OpModeGuard() { context_.mode_ = previous_; }
  OpModeGuard(const OpModeGuard&) = delete;
  OpModeGuard& operator=(const OpModeGuard&) = delete;

 private:
  Context& context_;
  OpMode previous_;
};

/// Scope in which ops record nothing.
class NoGradGuard : private OpModeGuard {
 public:
  explicit NoGradGuard(Context& context) : OpModeGuard(context, without_recording(context.mode())) {}

 private:
  static OpMode without_recording(OpMode mode) {
    mode.records = false;
    mode.noted = mode.repeated = nullptr;
    return mode;
  }
};

}  // namespace zs
