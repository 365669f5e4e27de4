#pragma once

#include <string>

#include "kernels/kernels.h"

/// Attention on GPUs by NVIDIA's cuDNN (docs/decisions/0055). Whether this build has it is a matter of -Dcudnn.
namespace zs {

/// Opens cuDNN for this process, first looked for in `folders` (DeviceOptions::libraries), at last in cuda_folders():
/// its version, "9.19.0". Error(config) that says in one line why there is none. Any thread.
std::string open_cudnn(const std::string& folders = {});

/// cuda_kernels(), but for attention of bf16 with a head_dim of 64 or 128, more than one token, no window and 16-byte
/// alignment. That is cuDNN's, if open_cudnn() has found it and it has the shape; else one line says why, and the
/// attention is that of cuda_kernels(). A stream's first call with a shape asks and must not be captured. Backward does
/// not repeat its bits.
const KernelTable& cuda_kernels_with_cudnn();

}  // namespace zs
