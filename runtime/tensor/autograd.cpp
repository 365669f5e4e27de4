#include "runtime/tensor/autograd.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/constant.h"
#include "runtime/tensor/op_trace.h"

namespace zs {
namespace {

/// `root` and everything it came from that is newer than `oldest`.
std::vector<Node*> collect(Node* root, std::uint64_t oldest) {
  std::vector<Node*> nodes{root};
  std::unordered_set<Node*> seen{root};
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (const auto& input : nodes[i]->inputs) {
      if (!input || !input->producer || input->producer->sequence <= oldest) continue;
      Node* producer = input->producer.get();
      if (seen.insert(producer).second) nodes.push_back(producer);
    }
  }
  return nodes;
}

/// sum := sum + part, in place when nobody else can see it.
void accumulate(Tensor& sum, const Tensor& part) {
  if (!sum) {
    sum = part;
    return;
  }
  Context& context = part.context();
  if (sum.numel() == 0) return;
  const Tensor out = sum.is_sole_owner() ? sum : Tensor::empty(context, sum.shape(), sum.dtype());
  const Buffer target = out.buffer(), a = sum.buffer(), b = part.buffer();
  context.launch({"add_gradients", {a, b}, {target}},
                 [&kernels = context.kernels(), target, a, b](ExecContext& exec) { kernels.add(exec, target, a, b); });
  sum = out;
}

/// The gradient so far, which is put back with what comes to it.
Tensor take_gradient(AutogradState& input) {
  if (input.producer) return std::exchange(input.producer->grad, {});
  return input.grad ? std::exchange(*input.grad, {}) : Tensor{};
}
void put_gradient(AutogradState& input, Tensor grad) {
  if (input.producer) {
    input.producer->grad = std::move(grad);
  } else {
    input.grad = std::make_shared<Tensor>(std::move(grad));
  }
}

void deliver(const std::shared_ptr<AutogradState>& input, const Tensor& grad) {
  Tensor sum = take_gradient(*input);
  accumulate(sum, grad);
  put_gradient(*input, std::move(sum));
}

/// Checks the gradient of an input that wants it.
void check_gradient(const Node& node, std::size_t input, const Tensor& grad) {
  const Node::Kind& kind = node.input_kinds[input];
  if (grad && grad.shape() == kind.shape && grad.dtype() == kind.dtype) return;
  if (!grad)
    throw UsageError(fmt::format("op {} gave no gradient for its input {}, {}", node.name, input, kind.shape.str()),
                     "give one, or no_gradient() where nothing flows back; an input that wants none is passed to "
                     "record_op detached");
  if (grad.shape() != kind.shape)
    throw UsageError(fmt::format("op {} gave a gradient of {} for its input {}, {}", node.name, grad.shape().str(),
                                 input, kind.shape.str()),
                     "a gradient has its input's shape");
  throw UsageError(fmt::format("op {} gave a gradient of {} for its input {}, {}", node.name, name_of(grad.dtype()),
                               input, name_of(kind.dtype)),
                   "a gradient has its input's dtype: cast it");
}

void run_adding_backward(Node& node) {
  AutogradState* const input = node.inputs.front().get();
  if (node.grad) {
    Tensor grad = node.adding_backward(node.grad, input ? take_gradient(*input) : Tensor{});
    if (input) {
      check_gradient(node, 0, grad);
      put_gradient(*input, std::move(grad));
    }
  }
  node.grad = {};
  node.adding_backward = nullptr;
}

void run_backward(Node& node) {
  if (node.adding_backward) return run_adding_backward(node);
  const bool is_run = static_cast<bool>(node.grad);
  std::vector<Tensor> grads;
  if (is_run) grads = node.backward(node.grad);
  node.grad = {};
  node.backward = nullptr;
  node.gelu_input = {};
  if (!is_run) return;
  const bool is_wanted =
      std::any_of(node.inputs.begin(), node.inputs.end(), [](const auto& input) { return input != nullptr; });
  if (grads.size() != node.inputs.size() && (is_wanted || !grads.empty()))
    throw UsageError(fmt::format("op {} gave {} gradients for {} inputs", node.name, grads.size(), node.inputs.size()),
                     "give one for each input, in their order");
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (node.inputs[i] && grads[i].autograd() != no_gradient().autograd()) {
      check_gradient(node, i, grads[i]);
      deliver(node.inputs[i], grads[i]);
    }
    grads[i] = {};
  }
}

/// While an op's backward runs: its parameters take shares of their gradients.
class SharesScope {
 public:
  explicit SharesScope(const Node& node) : node_(node) {
    for (Parameter* parameter : node.parameters) parameter->begin_shares(node.grad.context());
  }
  ~SharesScope() {
    for (Parameter* parameter : node_.parameters) parameter->drop_shares();
  }
  SharesScope(const SharesScope&) = delete;
  SharesScope& operator=(const SharesScope&) = delete;

  /// Adds what lies apart. Each trained parameter has got one.
  void end() {
    for (Parameter* parameter : node_.parameters)
      if (!parameter->end_shares() && parameter->is_trainable())
        throw UsageError(fmt::format("op {} gave parameter {} no gradient", node_.name, parameter->name()),
                         "call its add_grad or grad_target in backward, or freeze it by set_trainable(false)");
  }

 private:
  const Node& node_;
};

void run_with_shares(Node& node) {
  if (!node.grad || node.seed) return run_backward(node);  // with a seed they were given in forward
  SharesScope shares(node);
  run_backward(node);
  shares.end();
}

/// UsageError where its module, or the model that has sharded it, is there no more.
ParameterOwner& owner_of(const Node& node, const Parameter& parameter) {
  if (parameter.owner() != nullptr) return *parameter.owner();
  throw UsageError(
      fmt::format("backward of op {}: parameter {} has no owner any more: its module or its model has ended", node.name,
                  parameter.name()),
      "call backward while the model lives, and let its modules outlive it");
}

/// One backward: the nodes that are still to run, and what keeps them alive.
class Walk {
 public:
  Walk(const Node* start, float seed) : start_(start), seed_(seed) {}

  /// Adds `root` and what it came from, as far as that is newer than `oldest`. All of it is newer than what is still to
  /// run.
  void enter(const std::shared_ptr<Node>& root, std::uint64_t oldest) {
    const std::vector<Node*> nodes = collect(root.get(), oldest);
    for (const Node* node : nodes) check(*node);
    if (root->seed) {
      for (Parameter* parameter : root->parameters) parameter->drop_early_gradient();
    }
    const auto first = to_run_.insert(to_run_.end(), nodes.begin(), nodes.end());
    std::sort(first, to_run_.end(), [](const Node* a, const Node* b) { return a->sequence < b->sequence; });
    keep_.push_back(root);
  }

  /// Newest first is a topological order: an op is always newer than what it consumed.
  void run() {
    while (!to_run_.empty()) {
      Node& node = *to_run_.back();
      to_run_.pop_back();
      run(node);
      for (auto& input : node.inputs) {
        if (input && input->producer) keep_.push_back(input->producer);
        input.reset();
      }
    }
  }

 private:
  void check(const Node& node) const {
    if (!node.can_run())
      throw UsageError(fmt::format("backward was already run through op {}", node.name),
                       "call it once: add up the losses that have something in common, or compute them anew");
    if (!node.seed || (&node == start_ && *node.seed == seed_)) return;
    throw UsageError(
        fmt::format("op {} computed its gradients for backward from its own output with seed {}; this one {} {}",
                    node.name, *node.seed, &node == start_ ? "has seed" : "starts elsewhere, with seed", seed_),
        "give backward the seed that the op was given, and no other loss");
  }

  void run(Node& node) {
    for (Parameter* parameter : node.parameters) owner_of(node, *parameter).before_backward(*parameter);
    if (node.rerun) {
      run_again(node);
    } else {
      run_with_shares(node);
    }
    for (Parameter* parameter : node.parameters) {
      parameter->drop_use();
      owner_of(node, *parameter).after_backward(*parameter);
    }
  }

  /// The ops that it records take its place: they come next, and have added their own uses of the parameters.
  void run_again(Node& node) {
    const std::uint64_t before = node.grad ? node.grad.context().next_sequence() : 0;
    const std::shared_ptr<AutogradState> output = node.grad ? node.rerun() : nullptr;
    node.rerun = nullptr;
    if (output) {
      if (&node == start_) start_ = output->producer.get();
      deliver(output, node.grad);
      if (output->producer && output->producer->sequence > before) enter(output->producer, before);
    }
    node.grad = {};
  }

  const Node* start_;  // node where backward starts, or that a recomputed function recorded there
  float seed_;
  std::vector<Node*> to_run_;  // the newest last
  std::vector<std::shared_ptr<Node>> keep_;
};

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

/// Checks of an op before it is recorded; in the first run of a recomputed function, where it is not to be, true.
bool begins_record(const std::string& name, Tensor& output, const std::vector<Tensor>& inputs,
                   const std::vector<Parameter*>& parameters) {
  for (const Tensor& input : inputs) check_contexts(name, output, input);
  const OpMode& mode = output.context().mode();
  if (mode.repeated) mode.repeated->repeat(name, output, inputs, parameters);
  if (mode.noted) mode.noted->note(name, output, inputs, parameters);
  return mode.noted != nullptr;
}

}  // namespace

Node::~Node() {
  rerun = nullptr;  // `rerun` holds the states of `inputs` as well
  std::vector<std::shared_ptr<AutogradState>> dropped = std::move(inputs);
  while (!dropped.empty()) {
    const std::shared_ptr<AutogradState> state = std::move(dropped.back());
    dropped.pop_back();
    if (!state || state.use_count() > 1 || !state->producer || state->producer.use_count() > 1) continue;
    for (auto& input : state->producer->inputs) dropped.push_back(std::move(input));
    state->producer->inputs.clear();
  }
}

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
  for (const Tensor& output : outputs) kinds.push_back({output.shape(), output.dtype()});
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
  Tensor view = x.detach();
  record_op(view, "on_gradient", {x}, {}, [f = std::move(f)](const Tensor& dy) {
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

void Tensor::backward(float seed) const { zs::backward(*this, seed); }

void backward(const Tensor& loss, float seed) {
  if (!loss || loss.numel() != 1 || loss.dtype() != DType::f32)
    throw UsageError(
        fmt::format("backward starts from a scalar of f32, and got {}", loss ? loss.describe() : "an empty tensor"),
        "sum or average to one element; cast(loss, DType::f32) where it is bf16");
  if (!loss.requires_grad() || !loss.autograd()->producer)
    throw UsageError("the loss depends on nothing that wants a gradient",
                     "was it computed under a NoGradGuard or in evaluation, from detached tensors, or from frozen "
                     "parameters alone?");
  const std::shared_ptr<Node>& root = loss.autograd()->producer;
  Walk walk(root.get(), seed);
  walk.enter(root, 0);
  root->grad = constant(loss.context(), loss.shape(), seed);
  walk.run();
}

}  // namespace zs
