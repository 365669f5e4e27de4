#include "kernels/cuda/launch.h"
#include "kernels/families.h"

namespace zs {
namespace cuda {
namespace {

struct Kernels {
  KernelTable table{};
  KernelNames names;
};

const Kernels& kernels() {
  static const Kernels all = [] {
    Kernels filled;
    for (const auto fill : kFamilies) fill(filled.table, filled.names);
    return filled;
  }();
  return all;
}

}  // namespace

std::span<const std::string> kernel_names() { return kernels().names; }

}  // namespace cuda

const KernelTable& cuda_kernels() { return cuda::kernels().table; }

}  // namespace zs
