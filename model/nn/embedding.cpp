#include "model/nn/embedding.h"

#include "runtime/base/usage_error.h"

namespace zs {

Embedding::Embedding(std::string path, std::int64_t rows, std::int64_t width, Init init, std::int64_t padding)
    : Layer(std::move(path)), weight_(add_parameter("weight", {rows, width}, init, true)), padding_(padding) {
  if (padding >= rows)
    throw UsageError(fmt::format("embedding \"{}\" of {} rows with the padding {}", this->path(), rows, padding),
                     "name one of its rows");
}

Tensor Embedding::forward(const Tensor& ids, Embedding* positions, std::int64_t first, const Documents& documents) {
  const ForwardScope of_positions = positions != nullptr ? positions->enter() : ForwardScope(nullptr, 0);
  return output(
      embedding(ids, weight_, positions != nullptr ? &positions->weight_ : nullptr, first, documents, padding_));
}

}  // namespace zs
