#pragma once

#include "runtime/tensor/tensor.h"

namespace zs {

/// f32, every element `value`. Nothing goes from the host to the device for it, so that captured work may make it.
Tensor constant(Context& context, const Shape& shape, float value);

}  // namespace zs
