// A user's own elementwise op, as nvcc compiles it for the CPU and for the GPU at once. In a build with CUDA it is
// compiled; a GPU runs it.
#include <cmath>

#include "runtime/tensor/elementwise.h"

namespace zs::test {

Tensor softplus(const Tensor& x) {
  return elementwise(
      "softplus", x, [] __host__ __device__(float v) { return log1pf(expf(v)); },
      [] __host__ __device__(float v) { return 1 / (1 + expf(-v)); });
}

}  // namespace zs::test
