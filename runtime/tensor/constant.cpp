#include "runtime/tensor/constant.h"

#include <bit>

#include "runtime/tensor/host_view.h"

namespace zs {

Tensor constant(Context& context, const Shape& shape, float value) {
  Tensor tensor = Tensor::empty(context, shape, DType::f32);
  const Buffer out = tensor.buffer();
  context.launch({"constant", {}, {out}},
                 [out, word = std::bit_cast<std::uint32_t>(value)](ExecContext& exec) { fill_words(exec, out, word); });
  return tensor;
}

}  // namespace zs
