#pragma once

#include <string>

namespace zs {

/// Version of the oneDNN that this process has loaded: "2.7.2".
std::string onednn_version();

/// Compute capabilities that the CUDA kernels in this program are compiled for, as the build was told: "80,90+PTX";
/// empty: there are none.
std::string cuda_kernel_archs();

}  // namespace zs
