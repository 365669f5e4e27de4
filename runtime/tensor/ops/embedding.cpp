#include "runtime/base/usage_error.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/declare_gradient.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/ops.h"

namespace zs {
namespace {

using Runs = std::vector<Documents::Run>;

/// Rows that ids may name: those that are padding (Parameter::matrix_rows) are none.
Buffer rows_of_ids(const Parameter& table) {
  std::int64_t rows = 0;
  for (const std::int64_t of_matrix : table.matrix_rows()) rows += of_matrix;
  const Buffer all = table.value();
  return rows == 0 || !table.part().is_whole() ? all : all.slice(0, rows * table.shape()[1]);
}

/// But for the rows of the id `padding`, which have none.
void table_gradient(const Tensor& dy, const Tensor& ids, Parameter& table, std::int64_t padding) {
  if (!table.is_trainable()) return;
  Context& context = dy.context();
  const Buffer in = dy.buffer(), index = ids.buffer();
  const auto dtable = table.accumulation_target();
  context.launch(declare_gradient({"embedding_backward", {in, index}}, dtable),
                 [&kernels = context.kernels(), in, index, dtable, width = table.shape()[1],
                  id = static_cast<std::int32_t>(padding)](ExecContext& exec) {
                   kernels.embedding_backward(exec, dtable.buffer, index, in, width, dtable.beta, id);
                 });
}

void position_gradient(const Tensor& dy, Parameter* positions, const Runs& runs) {
  if (positions == nullptr || !positions->is_trainable()) return;
  Context& context = dy.context();
  const std::int64_t width = positions->shape()[1];
  const Buffer in = dy.buffer();
  const auto dpositions = positions->accumulation_target();
  context.launch(declare_gradient({"position_backward", {in}}, dpositions),
                 [&kernels = context.kernels(), in, dpositions, width, runs](ExecContext& exec) {
                   float beta = dpositions.beta;
                   for (const Documents::Run& run : runs) {
                     kernels.position_backward(exec, dpositions.buffer,
                                               in.slice(run.first * width, run.tokens() * width), run.length, width,
                                               beta);
                     beta = 1.0f;
                   }
                 });
}

}  // namespace

Tensor embedding(const Tensor& ids, Parameter& table, Parameter* positions, std::int64_t first,
                 const Documents& documents, std::int64_t padding) {
  require_ids("embedding", "ids", ids);
  if (padding < -1 || padding >= table.shape()[0])
    throw UsageError(fmt::format("op embedding: padding {} of a table of {} rows", padding, table.shape()[0]),
                     "name one of its rows, or -1 for none");
  if (ids.shape().rank() != 2)
    throw UsageError(fmt::format("op embedding: ids are {}, expected (B, T)", ids.describe()));
  Context& context = ids.context();
  const std::int64_t batch = ids.shape()[0], time = ids.shape()[1], width = table.shape()[1];
  const Buffer rows = rows_of_ids(table), index = ids.buffer();
  const Runs runs = documents.runs("embedding", batch, time);
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
                 [&kernels = context.kernels(), out, index, rows, offsets, width, runs](ExecContext& exec) {
                   for (const Documents::Run& run : runs)
                     kernels.embedding_forward(exec, out.slice(run.first * width, run.tokens() * width),
                                               index.slice(run.first, run.tokens()), rows, offsets, run.length);
                 });
  record_op(y, "embedding", {}, {&table, positions},
            [ids = ids.detach(), &table, positions, runs, padding](const Tensor& dy) {
              table_gradient(dy, ids, table, padding);
              position_gradient(dy, positions, runs);
              return std::vector<Tensor>{};
            });
  return y;
}

}  // namespace zs
