#include "model/nn/embedding.h"

#include "model/nn/tensor_partition.h"
#include "runtime/base/usage_error.h"
#include "runtime/shard/collectives/collectives.h"
#include "runtime/tensor/arithmetic.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/pointwise.h"

namespace zs {

Embedding::Embedding(std::string path, std::int64_t rows, std::int64_t width, Init init, std::int64_t padding)
    : Layer(std::move(path)), weight_(add_parameter("weight", {rows, width}, init, true)), padding_(padding) {
  if (padding >= rows)
    throw UsageError(fmt::format("embedding \"{}\" of {} rows with the padding {}", this->path(), rows, padding),
                     "name one of its rows");
}

namespace {

/// i32 (B, T): the row of the positions' table that is added to each token.
Tensor positions_of(const Tensor& ids, std::int64_t first, const Documents& documents) {
  const std::int64_t batch = ids.shape()[0], tokens = ids.shape()[1];
  std::vector<std::int32_t> positions(static_cast<std::size_t>(batch * tokens));
  for (const Documents::Run& run : documents.runs("embedding", batch, tokens))
    for (std::int64_t i = 0; i < run.tokens(); ++i)
      positions[static_cast<std::size_t>(run.first + i)] = static_cast<std::int32_t>(first + i % run.length);
  return Tensor::from_host(ids.context(), ids.shape(), std::move(positions));
}

}  // namespace

Tensor Embedding::sum_of_rows(Communicator& ranks, const Tensor& ids) {
  const std::int64_t rows = weight_.shape()[0], before = weight_.part().index * rows;
  require_below("embedding", "id", ids, rows * weight_.part().count);  // another would be no rank's, and give zeros
  const Tensor own = ids - static_cast<float>(before);
  const Tensor is_here = mul(ge(own, 0.0f), lt(own, static_cast<float>(rows)));
  const std::int64_t padding = padding_ >= before && padding_ < before + rows ? padding_ - before : -1;
  const Tensor found = embedding(where(is_here, own, 0.0f), weight_, nullptr, 0, {}, padding);
  const Tensor part = where(is_here.reshape({ids.shape()[0], ids.shape()[1], 1}), cast(found, DType::f32), 0.0f);
  return cast(sum_of_parts(ranks, part), found.dtype());
}

void Embedding::add_adapter(const std::string& name, std::int64_t vocab, std::int64_t rank, float scale) {
  adapters_ = &make_child<LoraAdapters>("lora");
  adapter_ = &adapters_->add(
      name, EmbeddingLoraOptions{
                .vocab = vocab, .width = weight_.shape()[1], .rank = rank, .scale = scale, .padding = padding_});
}

Tensor Embedding::forward(const Tensor& ids, Embedding* positions, std::int64_t first, const Documents& documents) {
  const ForwardScope of_positions = positions != nullptr ? positions->enter() : ForwardScope(nullptr, 0);
  const bool is_adapted = adapters_ != nullptr && adapters_->is_on();
  if (Communicator* const ranks = find_part_ranks(*this, weight_)) {
    if (is_adapted)
      throw UsageError(fmt::format("\"{}\" is cut over {} ranks, and has an adapter", path(), ranks->size()),
                       "leave one of the two out");
    const Tensor sum = sum_of_rows(*ranks, ids);
    if (positions == nullptr) return output(sum);
    return output(add(sum, embedding(positions_of(ids, first, documents), positions->weight_, nullptr)));
  }
  const Tensor rows =
      output(embedding(ids, weight_, positions != nullptr ? &positions->weight_ : nullptr, first, documents, padding_));
  if (!is_adapted) return rows;
  const ForwardScope scope = adapters_->unsharded();
  return add(rows, cast((*adapter_)(ids), rows.dtype()));
}

}  // namespace zs
