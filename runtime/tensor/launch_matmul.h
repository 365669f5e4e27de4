#pragma once

#include "runtime/tensor/context.h"

namespace zs {

struct MatmulBuffers {
  Buffer c, a, b, bias;  // bias may be empty
};

/// Enqueues one product with its declaration; see MatmulDims.
void launch_matmul(Context& context, const char* name, const MatmulBuffers& buffers, const MatmulDims& dims);

}  // namespace zs
