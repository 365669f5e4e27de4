#pragma once

/// Marks a function that the host's compiler and nvcc both compile, for the CPU and for the GPU.
#if defined(__CUDACC__)
#define ZS_ON_BOTH __host__ __device__
#else
#define ZS_ON_BOTH
#endif
/// Marks the kernels' own functions, likewise for host and device. Static, because an instruction set's own copy must
/// stay its own (kernels/cpu/isa.h).
#define ZS_HOST_DEVICE static ZS_ON_BOTH inline
