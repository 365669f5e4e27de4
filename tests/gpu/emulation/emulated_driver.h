#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "runtime/device/cuda_gpu.h"
#include "tests/gpu/emulation/emulated_graph.h"
#include "tests/gpu/emulation/function_calls.h"
#include "tests/gpu/emulation/grid.h"

namespace zs::test {

/// A kernel that the host can run.
struct EmulatedKernel {
  std::size_t args_bytes;  ///< of its only argument
  std::function<void(const void* args, const emulation::Launch& launch)> run;
};

/// A driver for tests, of GPUs that do not exist: memory is the host's, streams are queues. Whenever somebody asks how
/// far the GPU is, some of what is enqueued runs: of the streams whose next entry may run, a random one, by seed; so
/// that a missing event shows as a wrong order on some seed. What the real driver checks at a call is checked here. One
/// at a time; a device must not outlive it.
class EmulatedDriver {
 public:
  struct Options {
    int gpus = 1;
    std::int64_t memory_bytes = 1 << 30;
    std::uint64_t seed = 1;
    bool is_immediate = false;  ///< what is enqueued runs at once
    bool is_guarded =
        false;      ///< the host that touches the GPU's memory itself is ended by a signal, as it is with a real GPU
    int major = 9;  ///< of the compute capability; the minor one is 9
    std::map<std::string, EmulatedKernel> kernels = {};
  };
  explicit EmulatedDriver(const Options& options);
  EmulatedDriver() : EmulatedDriver(Options{}) {}
  ~EmulatedDriver();
  EmulatedDriver(const EmulatedDriver&) = delete;
  EmulatedDriver& operator=(const EmulatedDriver&) = delete;

  std::shared_ptr<const CudaDriver> table() const { return table_; }

  /// Kernels run from their last thread to the first.
  void run_backwards(bool backwards) { runs_backwards_ = backwards; }
  /// What a kernel launch does: `body` runs when the GPU comes to it. For a stream's work.
  void launch(void* native_stream, std::function<void()> body);
  /// The stream goes on when `passed` says so.
  void await(void* native_stream, std::function<bool()> passed);
  /// Whether what it is given becomes part of a graph.
  bool captures(void* native_stream) const;
  /// What it does is under this lock: for libraries that are emulated beside it.
  std::recursive_mutex& mutex() const { return mutex_; }
  /// Of the calling thread's context; -1: none is current.
  static int current_gpu();
  /// The GPU's clock, which else goes on by about a microsecond with each entry.
  void pass_time(double ms) { now_ms_ += ms; }
  /// From now on nothing enqueued runs, of any stream or of this one; or again.
  void stand_still(bool stands) { stands_still_ = stands; }
  void hold(void* native_stream) { held_.insert(static_cast<CUstream_st*>(native_stream)); }
  void let_go(void* native_stream) { held_.erase(static_cast<CUstream_st*>(native_stream)); }
  /// The next call of this function ("cuMemAlloc") returns `status` and does nothing; from 700 to 720 so do all that
  /// follow, of any function.
  void fail(const std::string& function, int status) { calls_.fail(function, status); }
  /// The GPU fails with `status` when it comes to this point of the stream: every call that follows says so.
  void fail_on_gpu(void* native_stream, int status);
  /// Calls of a function so far, with and without success.
  int calls(const std::string& function) const;
  std::set<std::string> functions_called() const;
  int priority(void* native_stream) const;
  /// Of the calling thread.
  bool has_current_context() const;
  /// Streams, events, modules, blocks of memory (of the host's too) and contexts that nobody has given back.
  std::size_t live_handles() const;

 private:
  friend struct EmulatedFunctions;
  /// Counts the call; its status if it shall fail, else 0.
  int enter(const char* function);
  void run_some();
  /// Guarded memory: whether it can be touched now.
  void open_memory(bool opens);
  void push(CUstream_st& stream, std::function<void()> body);
  void run_kernel(const EmulatedKernel& kernel, const void* args, emulation::Launch launch);
  bool is_free_to_run(const CUstream_st& stream) const;

  const Options options_;
  const std::string uuid_;  // the first 15 bytes of the GPUs'; no other emulated driver has them
  std::shared_ptr<const CudaDriver> table_;
  mutable std::recursive_mutex mutex_;
  std::mt19937_64 random_;
  bool stands_still_ = false, runs_backwards_ = false;
  std::set<const CUstream_st*> held_;
  int lost_ = 0;  // every call returns it
  double now_ms_ = 0;
  EmulatedGraphs graphs_;
  FunctionCalls calls_;
  std::set<CUstream_st*> streams_;
  int streams_made_ = 0;
  std::set<CUevent_st*> events_;
  std::set<CUmod_st*> modules_;
  struct Block {
    std::shared_ptr<void> memory;
    std::size_t bytes;
  };
  std::map<CudaDriver::Address, Block> memory_;
  std::size_t used_bytes_ = 0;
  std::set<void*> host_memory_;
  std::vector<int> contexts_;  // retained, by GPU
};

}  // namespace zs::test
