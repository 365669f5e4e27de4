#include "kernels/cuda/image.h"

#ifdef ZS_CUDA_IMAGE
// The file that nvcc has written, as bytes of this program.
__asm__(
    ".pushsection .rodata\n"
    ".balign 64\n"
    "zs_cuda_image:\n"
    ".incbin \"" ZS_CUDA_IMAGE
    "\"\n"
    "zs_cuda_image_end:\n"
    ".popsection\n");
extern "C" const std::byte zs_cuda_image[], zs_cuda_image_end[];
#endif

namespace zs::cuda {

std::span<const std::byte> kernel_image() {
#ifdef ZS_CUDA_IMAGE
  return {zs_cuda_image, zs_cuda_image_end};
#else
  return {};
#endif
}

}  // namespace zs::cuda
