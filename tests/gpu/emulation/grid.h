#pragma once

#include <cstdint>
#include <functional>

/// Runs a kernel's source, compiled for the host, as a GPU would: block after block, thread after thread; those of a block that meet at
/// barriers are fibers, which take turns there.
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

/// `meets`: whether the kernel has barriers; without, coming to one is an error. `backwards`: from the last block and thread to the first,
/// so that two runs differ where a barrier is missing. The first exception that a thread throws is thrown again.
void run_grid(const Dim& grid, const Dim& block, bool meets, bool backwards, const std::function<void()>& kernel);

}  // namespace zs::emulation
