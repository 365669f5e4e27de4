#include "model/weights/quantized_tensor.h"

#include "model/weights/mxfp4_tensor.h"
#include "model/weights/nf4_tensor.h"

namespace zs {

std::shared_ptr<const QuantizedTensor> QuantizedTensor::find(WeightFiles& files, const std::string& codes) {
  if (codes.ends_with(Mxfp4Tensor::kBlocks) && files.find(codes) != nullptr)
    return std::make_shared<const Mxfp4Tensor>(files, codes);
  return Nf4Tensor::find(files, codes);
}

}  // namespace zs
