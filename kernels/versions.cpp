#include "kernels/versions.h"

#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.h>

namespace zs {

std::string onednn_version() {
  const dnnl_version_t* const version = dnnl_version();
  return fmt::format("{}.{}.{}", version->major, version->minor, version->patch);
}

std::string cuda_kernel_archs() { return ZSHARD_GPU_ARCHS; }

}  // namespace zs
