#include "runtime/base/usage_error.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/declare_gradient.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/ops.h"

namespace zs {
namespace {

void embedding_gradients(const Tensor& dy, const Tensor& ids, Parameter& table, Parameter* positions) {
  Context& context = dy.context();
  const std::int64_t time = ids.shape()[-1], width = table.shape()[1];
  const Buffer in = dy.buffer(), index = ids.buffer();
  if (table.is_trainable()) {
    const auto dtable = table.accumulation_target();
    context.launch(declare_gradient({"embedding_backward", {in, index}}, dtable),
                   [&kernels = context.kernels(), in, index, dtable, width](ExecContext& exec) {
                     kernels.embedding_backward(exec, dtable.buffer, index, in, width, dtable.beta);
                   });
  }
  if (positions == nullptr || !positions->is_trainable()) return;
  const auto dpositions = positions->accumulation_target();
  context.launch(declare_gradient({"position_backward", {in}}, dpositions),
                 [&kernels = context.kernels(), in, dpositions, time, width](ExecContext& exec) {
                   kernels.position_backward(exec, dpositions.buffer, in, time, width, dpositions.beta);
                 });
}

}  // namespace

Tensor embedding(const Tensor& ids, Parameter& table, Parameter* positions, std::int64_t first) {
  require_ids("embedding", "ids", ids);
  if (ids.shape().rank() != 2)
    throw UsageError(fmt::format("op embedding: ids are {}, expected (B, T)", ids.describe()));
  Context& context = ids.context();
  const std::int64_t batch = ids.shape()[0], time = ids.shape()[1], width = table.shape()[1];
  const Buffer rows = table.value(), index = ids.buffer();
  Buffer offsets;
  if (positions != nullptr) {
    require_alike("embedding", table, *positions);
    if (first < 0 || positions->shape()[0] < first + time || positions->shape()[1] != width)
      throw UsageError(fmt::format("op embedding: parameter {} {} for sequences of {} tokens of width {}",
                                   positions->name(), positions->shape().str(), first + time, width));
    offsets = first == 0 ? positions->value() : positions->value().slice(first * width, time * width);
  }

  Tensor y = Tensor::empty(context, {batch, time, width}, rows.dtype);
  const Buffer out = y.buffer();
  std::vector<Buffer> reads{index, rows};
  if (positions) reads.push_back(offsets);
  context.launch({"embedding", std::move(reads), {out}},
                 [&kernels = context.kernels(), out, index, rows, offsets, time](ExecContext& exec) {
                   kernels.embedding_forward(exec, out, index, rows, offsets, time);
                 });
  record_op(y, "embedding", {}, {&table, positions}, [ids = ids.detach(), &table, positions](const Tensor& dy) {
    embedding_gradients(dy, ids, table, positions);
    return std::vector<Tensor>{};
  });
  return y;
}

}  // namespace zs
