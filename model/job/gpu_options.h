#pragma once

#include <string>

namespace zs {

/// Options for GPUs: the keys `cuda.*` of a configuration, and members of RunOptions::cuda.
struct GpuOptions {
  std::string transport = "auto";  ///< "nccl", "staged" (through the hosts' memory), or NCCL where there is one
  bool share_gpu = false;          ///< ranks may share a GPU
  std::string libraries = {};      ///< folders, separated by colons, where CUDA's libraries are looked for first
};

}  // namespace zs
