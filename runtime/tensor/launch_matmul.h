#pragma once

#include "runtime/tensor/context.h"

namespace zs {

/// Enqueues one product with its declaration; see MatmulDims.
void launch_matmul(Context& context, const char* name, const MatmulBuffers& buffers, const MatmulDims& dims);

}  // namespace zs
