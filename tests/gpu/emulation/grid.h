#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

/// Runs a kernel's source, compiled for the host, as a GPU would: block after block, warp after warp, thread after
/// thread; those that meet are fibers, which take turns there.
namespace zs::emulation {

struct Dim {
  unsigned x = 1, y = 1, z = 1;
};

/// Of the thread that runs: what a kernel calls threadIdx and so on.
struct ThreadPlace {
  Dim thread, block, block_dim, grid_dim;
};
const ThreadPlace& place();

/// __syncthreads: every thread of the block that has not ended comes here before any goes on.
void sync_block();

inline constexpr std::size_t kMostBrought = 32;
/// What the lanes of a warp have brought to a meeting: lane i's at [i].
using Brought = std::byte[32][kMostBrought];
/// What an instruction that a warp executes as one (`.sync.aligned`) does: all 32 threads of the warp come to the same
/// `operation` before any goes on, each with `bytes` of its own. Anything else is an error. Holds until the thread's
/// next meeting but one.
const Brought& meet_warp(const char* operation, const void* mine, std::size_t bytes);

/// The block's dynamic shared memory: as much as the launch has asked for, 128-byte aligned, filled with NaN when a
/// block begins.
struct SharedMemory {
  std::byte* address;
  std::size_t bytes;
};
SharedMemory shared_memory();

/// A copy that the thread has begun: `to` holds NaN until the thread waits for it.
struct Copy {
  std::byte* to;
  const std::byte* from;  // null: zeros
  std::size_t bytes;
};
void begin_copy(const Copy& copy);
/// All that this thread has begun is there. A thread may not end with copies under way.
void finish_copies();

/// Mistakes to be found: the n-th (from 0) barrier, meeting without a value (__syncwarp) or wait for copies of every
/// thread does nothing.
struct Mistake {
  int barrier = -1, warp_barrier = -1, wait = -1;
};
/// Of all launches of this thread from now on; none: {}.
void make_mistake(const Mistake& mistake);
/// How often one was made since.
int mistakes_made();
/// __syncwarp
void sync_warp();

struct Launch {
  Dim grid, block;
  std::size_t shared_bytes = 0;
  bool backwards =
      false;  ///< from the last block, warp and thread to the first, so that two runs differ where a barrier is missing
};
/// `meets`: whether the kernel's threads meet; without, a meeting is an error. The first exception that a thread throws
/// is thrown again.
void run_grid(const Launch& launch, bool meets, const std::function<void()>& kernel);

}  // namespace zs::emulation
