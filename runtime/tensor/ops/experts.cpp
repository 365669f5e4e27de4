#include "runtime/tensor/experts.h"

#include "runtime/base/usage_error.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/declare_gradient.h"
#include "runtime/tensor/launch_matmul.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/ops.h"

namespace zs {
namespace {

const ExpertKernels& experts_of(Context& context) {
  const ExpertKernels& kernels = context.kernels().experts;
  if (kernels.route == nullptr)
    throw UsageError("mixtures of experts have no kernels for GPUs yet",
                     "train the model on the CPU, or a model without experts");
  return kernels;
}

void require_rows(const char* op, const Tensor& x, std::int64_t rows) {
  require_float(op, "x", x);
  if (x.shape().rank() == 2 && x.shape()[0] == rows) return;
  throw UsageError(fmt::format("op {}: x is {}, for {} rows", op, x.describe(), rows),
                   "give a row for each of the routing's");
}

std::int64_t tokens_of(const Routing& routing) { return routing.ids.shape()[0]; }

/// Rows that tensors have room for; of experts that are dealt over ranks any number.
std::int64_t room_of(const Routing& routing, const Tensor& x) {
  return routing.order ? routing.order.numel() : x.shape()[0];
}

/// Rows that there are, on the stream's thread.
std::int64_t rows_in(const Buffer& offsets) { return offsets.as<std::int64_t>()[offsets.elems - 1]; }

GroupedDims filled(GroupedDims dims, const Buffer& offsets) {
  dims.rows = rows_in(offsets);
  return dims;
}

Tensor rows_like(const Tensor& x, std::int64_t rows, std::int64_t width) {
  return Tensor::empty(x.context(), {rows, width}, x.dtype());
}

/// out := the sums of the rows of y, by weights or, where these are empty, as they are.
void launch_combine(const Tensor& out, const Tensor& y, const Tensor& weights, const Tensor& places) {
  Context& context = y.context();
  const Buffer to = out.buffer(), from = y.buffer(), by = weights ? weights.buffer() : Buffer{}, at = places.buffer();
  OpInfo info{weights ? "combine_tokens" : "gather_tokens_backward", {from, at}, {to}};
  if (weights) info.reads.push_back(by);
  context.launch(std::move(info), [&kernels = experts_of(context), to, from, by, at, width = out.shape()[-1]](
                                      ExecContext& exec) { kernels.combine_rows(exec, to, from, by, at, width); });
}

RouteDims dims_of(const Tensor& logits, const RouteOptions& options) {
  return {logits.shape()[0], logits.shape()[1], options.chosen, options.scores, options.normalizes, options.factor};
}

void launch_route(const Routing& routing, const Tensor& logits, Parameter* selection_bias, const RouteDims& dims) {
  Context& context = logits.context();
  const Buffer weights = routing.weights.buffer(), ids = routing.ids.buffer(), in = logits.buffer(),
               bias = selection_bias ? selection_bias->value() : Buffer{};
  OpInfo info{"route", {in}, {weights, ids}};
  if (selection_bias) info.reads.push_back(bias);
  context.launch(std::move(info), [&kernels = experts_of(context), weights, ids, in, bias, dims](ExecContext& exec) {
    kernels.route(exec, weights, ids, in, bias, dims);
  });
  const SortedRows rows{routing.order.buffer(), routing.places.buffer(), routing.offsets.buffer(),
                        routing.shares.buffer()};
  context.launch({"sort_rows", {ids}, {rows.order, rows.places, rows.offsets, rows.shares}},
                 [&kernels = experts_of(context), rows, ids, experts = dims.experts](ExecContext& exec) {
                   kernels.sort_rows(exec, rows, ids, experts);
                 });
}

Tensor route_gradient(const Tensor& dweights, const Tensor& ids, const Tensor& logits, const RouteDims& dims) {
  Context& context = logits.context();
  Tensor dlogits = Tensor::empty(context, logits.shape(), DType::f32);
  const Buffer out = dlogits.buffer(), dw = dweights.buffer(), chosen = ids.buffer(), in = logits.buffer();
  context.launch({"route_backward", {dw, chosen, in}, {out}},
                 [&kernels = experts_of(context), out, dw, chosen, in, dims](ExecContext& exec) {
                   kernels.route_backward(exec, out, dw, chosen, in, dims);
                 });
  return dlogits;
}

struct GroupedInputs {
  Tensor x, offsets;
  GroupedDims dims;
};

void grouped_parameter_gradients(const Tensor& dy, const GroupedInputs& saved, Parameter& weight, Parameter* bias) {
  Context& context = dy.context();
  const Buffer grad = dy.buffer(), in = saved.x.buffer(), offsets = saved.offsets.buffer();
  const GroupedDims dims = saved.dims;
  if (weight.is_trainable()) {
    const auto target = weight.accumulation_target();
    context.launch(declare_gradient({"grouped_dweight", {grad, in, offsets}, {}}, target),
                   [&kernels = experts_of(context), target, grad, in, offsets, dims](ExecContext& exec) {
                     const GroupedDims d = filled(dims, offsets);
                     kernels.grouped_dweight(exec, target.buffer, grad.slice(0, d.rows * d.out),
                                             in.slice(0, d.rows * d.in), offsets, d, target.beta);
                   });
  }
  if (bias == nullptr || !bias->is_trainable()) return;
  const auto target = bias->accumulation_target();
  context.launch(declare_gradient({"grouped_dbias", {grad, offsets}, {}}, target),
                 [&kernels = experts_of(context), target, grad, offsets, dims](ExecContext& exec) {
                   const GroupedDims d = filled(dims, offsets);
                   kernels.grouped_dbias(exec, target.buffer, grad.slice(0, d.rows * d.out), offsets, d, target.beta);
                 });
}

Tensor grouped_input_gradient(const Tensor& dy, const GroupedInputs& saved, const Parameter& weight) {
  Context& context = dy.context();
  Tensor dx = Tensor::empty(context, saved.x.shape(), saved.x.dtype());
  const Buffer out = dx.buffer(), grad = dy.buffer(), by = weight.value(), offsets = saved.offsets.buffer();
  context.launch({"grouped_dx", {grad, by, offsets}, {out}},
                 [&kernels = experts_of(context), out, grad, by, offsets, dims = saved.dims](ExecContext& exec) {
                   const GroupedDims d = filled(dims, offsets);
                   kernels.grouped_dx(exec, out.slice(0, d.rows * d.in), grad.slice(0, d.rows * d.out), by, offsets, d);
                 });
  return dx;
}

std::vector<Tensor> router_gradients(const Tensor& dlogits, const Tensor& x, bool wants_dx, Parameter& weight,
                                     Parameter* bias) {
  Context& context = x.context();
  const std::int64_t experts = weight.shape()[0], width = weight.shape()[1], tokens = x.shape()[0];
  const Tensor dy = cast(dlogits, x.dtype());
  if (weight.is_trainable()) {
    const auto target = weight.accumulation_target();
    launch_matmul(context, "router_dweight", {target.buffer, dy.buffer(), x.buffer(), {}},
                  {.m = experts, .n = width, .k = tokens, .transpose_a = true, .beta = target.beta});
  }
  if (bias && bias->is_trainable()) {
    const auto target = bias->accumulation_target();
    const Buffer in = dy.buffer();
    const std::int64_t scratch = context.kernels().scratch.bias_backward(tokens, experts);
    context.launch(declare_gradient({"router_dbias", {in}, {}, scratch}, target),
                   [&kernels = context.kernels(), in, target](ExecContext& exec) {
                     kernels.bias_backward(exec, target.buffer, in, target.beta);
                   });
  }
  if (!wants_dx) return {Tensor{}};
  Tensor dx = Tensor::empty(context, x.shape(), x.dtype());
  launch_matmul(context, "router_dx", {dx.buffer(), dy.buffer(), weight.value(), {}},
                {.m = tokens, .n = width, .k = experts});
  return {dx};
}

}  // namespace

Tensor router_logits(const Tensor& x, Parameter& weight, Parameter* bias) {
  require_width("router_logits", x, weight, weight.shape()[1]);
  require_dtype_of("router_logits", x, weight);
  const std::int64_t tokens = x.numel() / weight.shape()[1];
  const Tensor rows = x.reshape({tokens, weight.shape()[1]});
  Tensor logits = Tensor::empty(x.context(), {tokens, weight.shape()[0]}, DType::f32);
  launch_matmul(x.context(), "router_logits",
                {logits.buffer(), rows.buffer(), weight.value(), bias ? bias->value() : Buffer{}},
                {.m = tokens, .n = weight.shape()[0], .k = weight.shape()[1], .transpose_b = true});
  record_op(logits, "router_logits", {rows}, {&weight, bias},
            [x = rows.detach(), wants_dx = rows.requires_grad(), &weight, bias](const Tensor& dlogits) {
              return router_gradients(dlogits, x, wants_dx, weight, bias);
            });
  return logits;
}

Routing route(const Tensor& logits, const RouteOptions& options, Parameter* selection_bias) {
  if (!logits || logits.dtype() != DType::f32 || logits.shape().rank() != 2)
    throw UsageError(fmt::format("op route: logits are {}", logits ? logits.describe() : "an empty tensor"),
                     "give f32 (tokens, experts)");
  const RouteDims dims = dims_of(logits, options);
  if (dims.chosen < 1 || dims.chosen > dims.experts)
    throw UsageError(fmt::format("op route: {} of {} experts are chosen", dims.chosen, dims.experts),
                     "choose at least one expert, and at most as many as there are");
  Context& context = logits.context();
  const std::int64_t rows = dims.tokens * dims.chosen;
  Routing routing{.weights = Tensor::empty(context, {dims.tokens, dims.chosen}, DType::f32),
                  .ids = Tensor::empty(context, {dims.tokens, dims.chosen}, DType::i32),
                  .order = Tensor::empty(context, {rows}, DType::i32),
                  .places = Tensor::empty(context, {rows}, DType::i32),
                  .offsets = Tensor::empty(context, {dims.experts + 1}, DType::i64),
                  .shares = Tensor::empty(context, {dims.experts}, DType::f32)};
  launch_route(routing, logits, selection_bias, dims);
  record_op(routing.weights, "route", {logits}, {},
            [ids = routing.ids, logits = logits.detach(), dims](const Tensor& dweights) {
              return std::vector<Tensor>{route_gradient(dweights, ids, logits, dims)};
            });
  return routing;
}

Tensor gather_tokens(const Tensor& x, const Routing& routing) {
  require_rows("gather_tokens", x, tokens_of(routing));
  Context& context = x.context();
  const std::int64_t width = x.shape()[-1];
  Tensor y = rows_like(x, routing.order.numel(), width);
  const Buffer out = y.buffer(), in = x.buffer(), order = routing.order.buffer();
  context.launch({"gather_tokens", {in, order}, {out}},
                 [&kernels = experts_of(context), out, in, order, width](ExecContext& exec) {
                   kernels.gather_rows(exec, out, in, order, width);
                 });
  record_op(y, "gather_tokens", {x}, {}, [places = routing.places, shape = x.shape()](const Tensor& dy) {
    Tensor dx = Tensor::empty(dy.context(), shape, dy.dtype());
    launch_combine(dx, dy, {}, places);
    return std::vector<Tensor>{dx};
  });
  return y;
}

Tensor grouped_linear(const Tensor& x, Parameter& weight, Parameter* bias, const Routing& routing) {
  require_rows("grouped_linear", x, room_of(routing, x));
  require_width("grouped_linear", x, weight, weight.shape()[1]);
  require_dtype_of("grouped_linear", x, weight);
  const std::int64_t experts = routing.experts();
  if (weight.shape()[0] % experts != 0 || (bias && bias->numel() != weight.shape()[0]))
    throw UsageError(fmt::format("op grouped_linear: parameter {} {} for {} experts{}", weight.name(),
                                 weight.shape().str(), experts, bias ? ", bias " + bias->shape().str() : ""),
                     "a weight has as many rows for each expert, and a bias an element for each of them");
  Context& context = x.context();
  const GroupedDims dims{x.shape()[0], experts, weight.shape()[0] / experts, weight.shape()[1]};
  Tensor y = rows_like(x, dims.rows, dims.out);
  const Buffer out = y.buffer(), in = x.buffer(), by = weight.value(), added = bias ? bias->value() : Buffer{},
               offsets = routing.offsets.buffer();
  OpInfo info{"grouped_linear", {in, by, offsets}, {out}};
  if (bias) info.reads.push_back(added);
  context.launch(
      std::move(info), [&kernels = experts_of(context), out, in, by, added, offsets, dims](ExecContext& exec) {
        const GroupedDims d = filled(dims, offsets);
        kernels.grouped_linear(exec, out.slice(0, d.rows * d.out), in.slice(0, d.rows * d.in), by, added, offsets, d);
      });
  const GroupedInputs saved{x.detach(), routing.offsets, dims};
  record_op(y, "grouped_linear", {x}, {&weight, bias},
            [saved, wants_dx = x.requires_grad(), &weight, bias](const Tensor& dy) {
              grouped_parameter_gradients(dy, saved, weight, bias);
              return std::vector<Tensor>{wants_dx ? grouped_input_gradient(dy, saved, weight) : Tensor{}};
            });
  return y;
}

Tensor expert_swiglu(const Tensor& x, const Routing& routing) {
  require_rows("expert_swiglu", x, room_of(routing, x));
  const std::int64_t width = x.shape()[1] / 2;
  if (x.shape()[1] % 2 != 0)
    throw UsageError(fmt::format("op expert_swiglu: x is {}, whose rows have no halves", x.describe()),
                     "give rows of a gate and as many values");
  Context& context = x.context();
  Tensor y = rows_like(x, x.shape()[0], width);
  const Buffer out = y.buffer(), in = x.buffer(), offsets = routing.offsets.buffer();
  context.launch({"expert_swiglu", {in, offsets}, {out}},
                 [&kernels = context.kernels(), out, in, offsets, width](ExecContext& exec) {
                   const std::int64_t elems = rows_in(offsets) * width;
                   kernels.swiglu_forward(exec, out.slice(0, elems), in.slice(0, 2 * elems), width);
                 });
  record_op(y, "expert_swiglu", {x}, {}, [x = x.detach(), of = routing.offsets, width](const Tensor& dy) {
    Tensor dx = Tensor::empty(dy.context(), x.shape(), x.dtype());
    const Buffer out = dx.buffer(), grad = dy.buffer(), in = x.buffer(), offsets = of.buffer();
    dy.context().launch({"expert_swiglu_backward", {grad, in, offsets}, {out}},
                        [&kernels = dy.context().kernels(), out, grad, in, offsets, width](ExecContext& exec) {
                          const std::int64_t elems = rows_in(offsets) * width;
                          kernels.swiglu_backward(exec, out.slice(0, 2 * elems), grad.slice(0, elems),
                                                  in.slice(0, 2 * elems), width);
                        });
    return std::vector<Tensor>{dx};
  });
  return y;
}

Tensor combine_tokens(const Tensor& y, const Routing& routing) {
  require_rows("combine_tokens", y, routing.order.numel());
  const std::int64_t width = y.shape()[-1];
  Tensor out = rows_like(y, tokens_of(routing), width);
  launch_combine(out, y, routing.weights, routing.places);
  record_op(out, "combine_tokens", {y, routing.weights}, {},
            [y = y.detach(), weights = routing.weights.detach(), places = routing.places, width](const Tensor& dout) {
              Context& context = dout.context();
              Tensor dy = Tensor::empty(context, y.shape(), y.dtype()),
                     dweights = Tensor::empty(context, weights.shape(), DType::f32);
              const Buffer to = dy.buffer(), dw = dweights.buffer(), grad = dout.buffer(), rows = y.buffer(),
                           by = weights.buffer(), at = places.buffer();
              context.launch({"combine_backward", {grad, rows, by, at}, {to, dw}},
                             [&kernels = experts_of(context), to, dw, grad, rows, by, at, width](ExecContext& exec) {
                               kernels.combine_backward(exec, to, dw, grad, rows, by, at, width);
                             });
              return std::vector<Tensor>{dy, dweights};
            });
  return out;
}

Tensor with_loss(const Tensor& x, const Tensor& loss, std::function<Tensor()> seed) {
  if (!loss || loss.numel() != 1 || loss.dtype() != DType::f32)
    throw UsageError(fmt::format("with_loss: the loss is {}", loss ? loss.describe() : "an empty tensor"),
                     "give an f32 scalar");
  Tensor y = x.detach();
  record_op(y, "with_loss", {x, loss}, {}, [seed = std::move(seed), shape = loss.shape()](const Tensor& dy) {
    return std::vector<Tensor>{dy, seed().reshape(shape)};
  });
  return y;
}

}  // namespace zs
