#include <algorithm>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/declare_gradient.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/ops.h"

namespace zs {
namespace {

AttentionDims dims_of(const char* op, const Tensor& qkv, std::int64_t heads, std::int64_t kv_heads) {
  require_float(op, "qkv", qkv);
  const std::int64_t keys = kv_heads > 0 ? kv_heads : heads, all = heads + 2 * keys;
  if (heads <= 0 || heads % keys != 0 || qkv.shape().rank() != 3 || qkv.shape()[2] % all != 0)
    throw UsageError(
        fmt::format("op {}: qkv is {}, for {} query heads and {} key and value heads", op, qkv.describe(), heads, keys),
        "expected (B, T, (heads + 2 kv_heads) head_dim), with heads a multiple of kv_heads");
  return {qkv.shape()[0], qkv.shape()[1], heads, qkv.shape()[2] / all, kv_heads};
}

using Runs = std::vector<Documents::Run>;

/// The rows of a run's tokens, of a buffer that has `width` elements for each.
Buffer rows_of(const Buffer& buffer, const Documents::Run& run, std::int64_t width) {
  return buffer.slice(run.first * width, run.tokens() * width);
}

/// The kernels take each run as a batch of its own.
AttentionDims dims_of(const Documents::Run& run, AttentionDims dims) {
  dims.batch = run.count;
  dims.time = run.length;
  return dims;
}

/// Enough for any cut into documents, so that a plan holds for all of them.
std::int64_t scratch_of(Context& context, AttentionDims dims, const Documents& documents) {
  if (!documents.are_whole_sequences()) dims.batch = std::max<std::int64_t>(dims.batch, context.threads());
  return context.kernels().scratch.attention(context.threads(), dims);
}

Tensor turned(const Tensor& qkv, const AttentionDims& dims, const RotaryOptions& options, const Runs& runs) {
  Context& context = qkv.context();
  Tensor y = Tensor::empty(context, qkv.shape(), qkv.dtype());
  const Buffer out = y.buffer(), in = qkv.buffer();
  context.launch({"rotary", {in}, {out}, context.kernels().scratch.rotary(context.threads(), dims)},
                 [&kernels = context.kernels(), out, in, dims, options, runs](ExecContext& exec) {
                   const std::int64_t width = qkv_width_of(dims);
                   for (const Documents::Run& run : runs)
                     kernels.rotary(exec, rows_of(out, run, width), rows_of(in, run, width), dims_of(run, dims),
                                    options);
                 });
  return y;
}

struct AttentionRun {
  Tensor qkv, y, lse;
  AttentionDims dims;
  Runs runs;
  std::int64_t scratch;
  Parameter* sinks;  // null: none

  std::int64_t width() const { return dims.heads * dims.head_dim; }
};

void check_sinks(const Context& context, const Parameter& sinks, std::int64_t heads) {
  if (context.kernels().sinks.forward == nullptr)
    throw UsageError("attention with sinks has no kernels for GPUs yet",
                     "train the model on the CPU, or a model without sinks");
  if (sinks.numel() != heads)
    throw UsageError(
        fmt::format("op attention: sinks {} are {}, for {} heads", sinks.name(), sinks.shape().str(), heads),
        "expected (heads)");
}

void forward(const AttentionRun& run) {
  Context& context = run.qkv.context();
  const Buffer out = run.y.buffer(), lse = run.lse.buffer(), in = run.qkv.buffer(),
               sinks = run.sinks != nullptr ? run.sinks->value() : Buffer{};
  OpInfo info{"attention", {in}, {out, lse}, run.scratch};
  if (run.sinks != nullptr) info.reads.push_back(sinks);
  context.launch(std::move(info), [&kernels = context.kernels(), out, lse, in, sinks, dims = run.dims,
                                   width = run.width(), runs = run.runs](ExecContext& exec) {
    for (const Documents::Run& part : runs) {
      const Buffer y = rows_of(out, part, width), sums = rows_of(lse, part, dims.heads),
                   x = rows_of(in, part, qkv_width_of(dims));
      if (sinks.empty())
        kernels.attention_forward(exec, y, sums, x, dims_of(part, dims));
      else
        kernels.sinks.forward(exec, y, sums, x, sinks, dims_of(part, dims));
    }
  });
}

void sinks_backward(const AttentionRun& run, const Tensor& dy) {
  Context& context = dy.context();
  const auto target = run.sinks->accumulation_target();
  const Buffer grad = dy.buffer(), y = run.y.buffer(), lse = run.lse.buffer(), sinks = run.sinks->value();
  OpInfo info{"attention_dsinks", {grad, y, lse, sinks}, {}, run.dims.heads * size_of(DType::f32)};
  context.launch(declare_gradient(std::move(info), target),
                 [&kernels = context.kernels(), grad, y, lse, sinks, target, dims = run.dims, width = run.width(),
                  runs = run.runs](ExecContext& exec) {
                   float beta = target.beta;
                   for (const Documents::Run& part : runs) {
                     kernels.sinks.backward(exec, target.buffer, rows_of(grad, part, width), rows_of(y, part, width),
                                            rows_of(lse, part, dims.heads), sinks, dims_of(part, dims), beta);
                     beta = 1;
                   }
                 });
}

Tensor backward(const AttentionRun& run, const Tensor& dy) {
  Context& context = dy.context();
  Tensor dqkv = Tensor::empty(context, run.qkv.shape(), run.qkv.dtype());
  const Buffer out = dqkv.buffer(), grad = dy.buffer(), y = run.y.buffer(), in = run.qkv.buffer(),
               lse = run.lse.buffer();
  context.launch({"attention_backward", {grad, y, in, lse}, {out}, run.scratch},
                 [&kernels = context.kernels(), out, grad, y, in, lse, dims = run.dims, width = run.width(),
                  runs = run.runs](ExecContext& exec) {
                   const std::int64_t all = qkv_width_of(dims);
                   for (const Documents::Run& part : runs)
                     kernels.attention_backward(exec, rows_of(out, part, all), rows_of(grad, part, width),
                                                rows_of(y, part, width), rows_of(in, part, all),
                                                rows_of(lse, part, dims.heads), dims_of(part, dims));
                 });
  return dqkv;
}

}  // namespace

Tensor rotary(const Tensor& qkv, std::int64_t heads, std::int64_t kv_heads, const RotaryOptions& options,
              const Documents& documents) {
  const AttentionDims dims = dims_of("rotary", qkv, heads, kv_heads);
  if (dims.head_dim % 2 != 0)
    throw UsageError(fmt::format("op rotary: heads of {} elements have no halves to turn", dims.head_dim),
                     "expected an even head_dim");
  const Runs runs = documents.runs("rotary", dims.batch, dims.time);
  Tensor y = turned(qkv, dims, options, runs);
  RotaryOptions back = options;
  back.is_inverse = !options.is_inverse;
  record_op(y, "rotary", {qkv}, {},
            [dims, back, runs](const Tensor& dy) { return std::vector<Tensor>{turned(dy, dims, back, runs)}; });
  return y;
}

Tensor causal_attention(const Tensor& qkv, std::int64_t heads, std::int64_t kv_heads, std::int64_t window,
                        const Documents& documents, Parameter* sinks) {
  AttentionDims dims = dims_of("attention", qkv, heads, kv_heads);
  if (window < 0)
    throw UsageError(fmt::format("op attention: a window of {} keys", window), "expected 0, for all, or more");
  dims.window = window;
  Context& context = qkv.context();
  if (sinks != nullptr) check_sinks(context, *sinks, heads);
  Tensor y = Tensor::empty(context, {dims.batch, dims.time, heads * dims.head_dim}, qkv.dtype());
  AttentionRun run{qkv.detach(),
                   y.detach(),
                   Tensor::empty(context, {dims.batch, heads, dims.time}, DType::f32),
                   dims,
                   documents.runs("attention", dims.batch, dims.time),
                   scratch_of(context, dims, documents),
                   sinks};
  forward(run);
  record_op(y, "attention", {qkv}, {sinks}, [run = std::move(run)](const Tensor& dy) {
    if (run.sinks != nullptr && run.sinks->is_trainable()) sinks_backward(run, dy);
    return std::vector<Tensor>{backward(run, dy)};
  });
  return y;
}

}  // namespace zs
