#pragma once

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device/allocator.h"
#include "runtime/device/pinned_memory.h"
#include "runtime/device/profile.h"
#include "runtime/device/scratch.h"
#include "runtime/device/stream.h"
#include "runtime/device/trace.h"

namespace zs {

/// Options that a device is made with.
struct DeviceOptions {
  int threads = 1;        ///< team of the compute stream
  std::vector<int> cpus;  ///< CPUs the device's threads may run on; empty: leave the affinity as it is
  /// synchronize() throws SyncTimeout (peer_lost) after this long; 0: no limit (tests only)
  double sync_timeout_s = 0;
  /// Seed of random delays before each op, per stream; with one, released blocks are poisoned too. 0: neither.
  std::uint64_t perturb_seed = 0;
  std::int64_t slab_bytes = 0;  ///< size of the pool's slab, see Pool
  /// Memory that a CPU device's pool, or a CUDA device's slab, is taken from; outlives the device; null: ordinary
  /// memory
  Allocator* memory = nullptr;
  int gpu = 0;  ///< index among the GPUs that the driver shows to this process; for a CUDA device
  /// Shares the GPU with other devices, of this process or others; else two on one GPU are refused
  bool shares_gpu = false;
  DeviceKind stands_for = DeviceKind::cpu;            ///< kind whose kernels' working memory a meta device counts
  std::int64_t upload_bytes = std::int64_t{4} << 20;  ///< size of the pinned memory through which uploads go to a GPU
  std::int64_t pinned_bytes = 0;  ///< taken at once for PinnedMemory, uploads included; 0: when it is needed
  std::string libraries = {};     ///< folders, separated by colons, where CUDA's libraries are looked for first
  bool tf32 = false;              ///< products of f32 on a GPU may round their operands to 11 bits: faster
  bool fuses_gelu = true;         ///< products of bf16 on a GPU may compute GELU before they round their sums
  bool times_products = false;    ///< algorithms of a GPU's products are chosen by time (ProductChoices)
  bool cudnn_attention = false;   ///< attention on a GPU by cuDNN where it can (cuda_kernels_with_cudnn)
};

/// One GPU (or this rank's share of the CPU, or the meta device, which has shapes and lifetimes but no memory and
/// no arithmetic: its streams record the trace and drop the work, its allocator hands out addresses that nothing
/// backs). Owned by one runtime; one host thread uses it. On destruction every stream is drained; errors that nobody
/// has seen are logged, not thrown. A stream that does not end within the timeout is left behind with the memory it may
/// still touch.
class Device {
 public:
  static std::unique_ptr<Device> create(DeviceKind kind, const DeviceOptions& options);
  virtual ~Device();

  virtual DeviceKind kind() const = 0;
  virtual Stream& stream(StreamRole role) = 0;
  virtual Allocator& allocator() = 0;
  MemoryCounter& memory() { return counter_; }
  /// Memory of whatever needs no special one.
  virtual Pool& pool() = 0;
  virtual Scratch& scratch() = 0;
  /// Pinned memory of the host, for copies from and to this device. `memory` counts the device's own memory, and not
  /// this.
  virtual PinnedMemory& pinned_memory() = 0;
  Trace& trace() { return trace_; }
  /// Opt-in times of the work, see Profile.
  virtual Profile& profile() = 0;
  /// Memory that work may still touch and that nobody else looks after any more: kept for as long as the device's own.
  virtual void keep(std::vector<std::shared_ptr<void>> memory) = 0;
  const DeviceOptions& options() const { return options_; }
  /// Progress of the streams, as a number that only grows; and, below, the activity of those that are not idle. Any
  /// thread.
  virtual std::uint64_t completed() const { return 0; }
  virtual std::string activity() const { return {}; }
  /// True if the host thread waits for a stream. Any thread.
  virtual bool is_awaited() const { return false; }
  /// Synchronises every stream; throws the first error found, or one that was kept, after which all streams are usable
  /// again.
  void synchronize();
  /// Keeps an error that a destructor has met, for the next synchronize() of the device to throw; the first stays.
  void keep_error(std::exception_ptr error) noexcept;
  /// The caller has seen the error that a synchronize has thrown last: streams that waited for the work which failed
  /// forget it too. Waits for all; what nobody has seen yet stays.
  void forget_thrown();

 protected:
  explicit Device(DeviceOptions options);
  /// Error that a synchronize has thrown last; null: none.
  virtual std::exception_ptr last_thrown() const { return {}; }
  DeviceOptions options_;
  Trace trace_;
  MemoryCounter counter_{&trace_};

 private:
  std::exception_ptr kept_error_;
};

}  // namespace zs
