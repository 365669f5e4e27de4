#pragma once

#include <math.h>
#include <stdint.h>

#include <stdexcept>

#include "tests/gpu/emulation/grid.h"

/// What a kernel's source finds of CUDA where the host's compiler reads it.
#define __global__
#define __device__
#define __shared__ static  // one block at a time
#define __launch_bounds__(threads)
#define threadIdx (::zs::emulation::place().thread)
#define blockIdx (::zs::emulation::place().block)
#define blockDim (::zs::emulation::place().block_dim)
#define gridDim (::zs::emulation::place().grid_dim)

inline int __ffsll(long long word) { return __builtin_ffsll(word); }
inline void __syncthreads() { ::zs::emulation::sync_block(); }
[[noreturn]] inline void __trap() { throw std::runtime_error("a kernel has trapped"); }
