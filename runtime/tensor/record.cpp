// Records of ops: what they came from, and checks of it.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/op_trace.h"

namespace zs {
namespace {

/// Null when nothing here wants a gradient, or nothing is recorded.
std::shared_ptr<Node> make_node(Context& context, std::string name, const std::vector<Tensor>& inputs,
                                const std::vector<Parameter*>& parameters) {
  const bool wanted =
      std::any_of(parameters.begin(), parameters.end(), [](const Parameter* p) { return p && p->is_trainable(); }) ||
      std::any_of(inputs.begin(), inputs.end(), [](const Tensor& t) { return t && t.requires_grad(); });
  if (!context.is_grad_enabled() || !wanted) return nullptr;

  auto node = std::make_shared<Node>();
  node->name = std::move(name);
  node->sequence = context.next_sequence();
  for (const Tensor& input : inputs) {
    node->inputs.push_back(input && input.requires_grad() ? input.autograd() : nullptr);
    node->input_kinds.push_back({input.shape(), input.dtype()});
  }
  for (Parameter* parameter : parameters) {
    if (!parameter) continue;
    if (parameter->owner() == nullptr)
      throw UsageError(fmt::format("op {} takes parameter {}, which no model has", node->name, parameter->name()),
                       "give its module to fully_shard first");
    parameter->add_use();
    node->parameters.push_back(parameter);
  }
  return node;
}

void set_producer(Tensor& output, std::shared_ptr<Node> node) {
  auto state = std::make_shared<AutogradState>();
  state->producer = std::move(node);
  output.set_autograd(std::move(state));
}

/// Streams of different devices, and of different contexts, know nothing of each other.
void check_contexts(const std::string& op, const Tensor& output, const Tensor& input) {
  if (input && &input.context() != &output.context()) [[unlikely]]
    throw UsageError(fmt::format("op {}: {} and {} belong to different devices or contexts", op, input.describe(),
                                 output.describe()),
                     "make all tensors of an op in one context; copy values by to_host() and from_host()");
}

/// A trained parameter that the output was computed from is among those that get a gradient.
void check_named(const std::string& op, const Tensor& output, const std::vector<Parameter*>& parameters) {
  if (const Parameter* const forgotten = output.take_unnamed(parameters)) [[unlikely]]
    throw UsageError(
        fmt::format("op {} computes from parameter {}, and was not recorded with it: it would not be trained", op,
                    forgotten->name()),
        "name it among the parameters of record_op, or freeze it by set_trainable(false)");
}

/// Checks of an op before it is recorded; in the first run of a recomputed function, where it is not to be, true.
bool begins_record(const std::string& name, Tensor& output, const std::vector<Tensor>& inputs,
                   const std::vector<Parameter*>& parameters) {
  bool is_view = false;
  for (const Tensor& input : inputs) {
    check_contexts(name, output, input);
    is_view = is_view || (input && input.is_same_storage(output));
  }
  const OpMode& mode = output.context().mode();
  if (!is_view && mode.records && mode.saved == nullptr) check_named(name, output, parameters);
  if (mode.repeated) mode.repeated->repeat(name, output, inputs, parameters);
  if (mode.noted) mode.noted->note(name, output, inputs, parameters);
  return mode.noted != nullptr;
}

}  // namespace

Tensor no_gradient() {
  // Never destroyed: where one rank of a process calls exit(), the threads of the others still hold it.
  static const auto& mark = *new std::shared_ptr<AutogradState>(std::make_shared<AutogradState>());
  Tensor none;
  none.set_autograd(mark);
  return none;
}

void record_op(Tensor& output, std::string name, const std::vector<Tensor>& inputs,
               const std::vector<Parameter*>& parameters, Backward backward) {
  if (begins_record(name, output, inputs, parameters)) return;
  std::shared_ptr<Node> node = make_node(output.context(), std::move(name), inputs, parameters);
  if (!node) return;
  node->backward = std::move(backward);
  set_producer(output, std::move(node));
}

void record_adding_op(Tensor& output, std::string name, const Tensor& input, const std::vector<Parameter*>& parameters,
                      AddingBackward backward) {
  if (begins_record(name, output, {input}, parameters)) return;
  std::shared_ptr<Node> node = make_node(output.context(), std::move(name), {input}, parameters);
  if (!node) return;
  node->adding_backward = std::move(backward);
  set_producer(output, std::move(node));
}

/// Autograd knows ops of one output: an empty tensor stands for all of them, comes from the inputs, and each output
/// comes from it. Outputs are newer than it is, so that it takes their gradients when they all have theirs.
void record_outputs(std::vector<Tensor>& outputs, const std::string& name, const std::vector<Tensor>& inputs,
                    const std::vector<Parameter*>& parameters, BackwardOfMany backward) {
  ZS_REQUIRE(!outputs.empty(), "op {} has no outputs", name);
  Context& context = outputs.front().context();
  auto grads = std::make_shared<std::vector<Tensor>>(outputs.size());
  std::vector<Node::Kind> kinds;
  for (const Tensor& output : outputs) {
    kinds.push_back({output.shape(), output.dtype()});
    check_named(name, output, parameters);
  }
  Tensor all = Tensor::empty(context, {0}, DType::f32);
  record_op(all, name, inputs, parameters, [&context, grads, kinds, backward = std::move(backward)](const Tensor&) {
    for (std::size_t i = 0; i < kinds.size(); ++i)
      if (!(*grads)[i]) (*grads)[i] = Tensor::zeros(context, kinds[i].shape, kinds[i].dtype);
    const std::vector<Tensor> taken = std::exchange(*grads, {});
    return backward(taken);
  });
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    record_op(outputs[i], name, {all}, {}, [&context, grads, i](const Tensor& dy) {
      (*grads)[i] = dy;
      return std::vector<Tensor>{Tensor::empty(context, {0}, DType::f32)};
    });
  }
}

Tensor on_gradient(const Tensor& x, std::function<Tensor(const Tensor& grad)> f) {
  if (!x) throw UsageError("on_gradient of an empty tensor");
  if (!f) throw UsageError("on_gradient with an empty function", "give it one");
  Tensor view = x.detach();
  record_op(view, "on_gradient", {x}, {}, [f = std::move(f)](const Tensor& dy) {
    OpMode mode = dy.context().mode();
    mode.saved = nullptr;
    const OpModeGuard guard(dy.context(), mode);
    const Tensor changed = f(dy.detach());
    return std::vector<Tensor>{changed ? changed : dy};
  });
  return view;
}

void record_rerun(Tensor& output, const std::vector<Tensor>& inputs, const std::vector<Parameter*>& parameters,
                  Rerun rerun) {
  std::shared_ptr<Node> node = make_node(output.context(), "recompute", inputs, parameters);
  if (!node) return;
  node->rerun = std::move(rerun);
  set_producer(output, std::move(node));
}

}  // namespace zs
