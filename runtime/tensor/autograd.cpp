#include "runtime/tensor/autograd.h"

#include <algorithm>
#include <queue>
#include <unordered_set>

namespace zs {
namespace {

void collect(const std::shared_ptr<Node>& root, std::vector<Node*>& nodes) {
  std::unordered_set<Node*> seen{root.get()};
  nodes.push_back(root.get());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (const auto& input : nodes[i]->inputs) {
      if (!input || !input->producer) continue;
      Node* producer = input->producer.get();
      if (seen.insert(producer).second) nodes.push_back(producer);
    }
  }
}

/// sum := sum + part, in place when nobody else can see it.
void accumulate(Tensor& sum, const Tensor& part) {
  if (!sum) {
    sum = part;
    return;
  }
  ZS_CHECK(sum.shape() == part.shape(), "gradients of shapes {} and {} meet", sum.shape().str(), part.shape().str());
  Context& context = part.context();
  const Tensor out = sum.is_sole_owner() ? sum : Tensor::empty(context, sum.shape(), sum.dtype());
  const Buffer target = out.buffer(), a = sum.buffer(), b = part.buffer();
  context.launch({"add_gradients", {a, b}, {target}},
                 [&kernels = context.kernels(), target, a, b](ExecContext& exec) { kernels.add(exec, target, a, b); });
  sum = out;
}

void deliver(const std::shared_ptr<AutogradState>& input, const Tensor& grad) {
  if (!grad) return;
  if (input->producer) {
    accumulate(input->producer->grad, grad);
  } else {
    Tensor sum = input->grad ? std::move(*input->grad) : Tensor{};
    accumulate(sum, grad);
    input->grad = std::make_shared<Tensor>(std::move(sum));
  }
}

void run(Node& node) {
  for (Parameter* parameter : node.parameters) parameter->owner()->before_backward(*parameter);
  std::vector<Tensor> grads;
  if (node.grad) grads = node.backward(node.grad);
  node.grad = {};
  node.backward = nullptr;
  ZS_CHECK(grads.empty() || grads.size() == node.inputs.size(), "op {} gave {} gradients for {} inputs", node.name, grads.size(),
           node.inputs.size());
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (node.inputs[i]) deliver(node.inputs[i], grads[i]);
    grads[i] = {};
  }
  for (Parameter* parameter : node.parameters) {
    parameter->drop_use();
    parameter->owner()->after_backward(*parameter);
  }
}

}  // namespace

Node::~Node() {
  std::vector<std::shared_ptr<AutogradState>> dropped = std::move(inputs);
  while (!dropped.empty()) {
    const std::shared_ptr<AutogradState> state = std::move(dropped.back());
    dropped.pop_back();
    if (!state || state.use_count() > 1 || !state->producer || state->producer.use_count() > 1) continue;
    for (auto& input : state->producer->inputs) dropped.push_back(std::move(input));
    state->producer->inputs.clear();
  }
}

void record_op(Tensor& output, std::string name, const std::vector<Tensor>& inputs, const std::vector<Parameter*>& parameters,
               Backward backward) {
  Context& context = output.context();
  const bool wanted =
      !parameters.empty() || std::any_of(inputs.begin(), inputs.end(), [](const Tensor& t) { return t && t.requires_grad(); });
  if (!context.is_grad_enabled() || !wanted) return;

  auto node = std::make_shared<Node>();
  node->name = std::move(name);
  node->sequence = context.next_sequence();
  for (const Tensor& input : inputs) node->inputs.push_back(input && input.requires_grad() ? input.autograd() : nullptr);
  for (Parameter* parameter : parameters) {
    if (!parameter) continue;
    ZS_CHECK(parameter->owner() != nullptr, "parameter {} belongs to no runtime", parameter->name());
    parameter->add_use();
    node->parameters.push_back(parameter);
  }
  node->backward = std::move(backward);

  auto state = std::make_shared<AutogradState>();
  state->producer = std::move(node);
  output.set_autograd(std::move(state));
}

void backward(const Tensor& loss, float seed) {
  ZS_CHECK(loss && loss.numel() == 1, "backward starts from a scalar");
  ZS_CHECK(loss.requires_grad() && loss.autograd()->producer, "the loss depends on nothing that wants a gradient");
  std::vector<Node*> nodes;
  const std::shared_ptr<Node> root = loss.autograd()->producer;
  collect(root, nodes);
  for (const Node* node : nodes) {
    ZS_CHECK(node->backward != nullptr, "backward was already run through op {}", node->name);
    ZS_CHECK(!node->seed || (node == root.get() && *node->seed == seed),
             "op {} computed its gradients for backward from its own output with seed {}; this one {} {}", node->name, *node->seed,
             node == root.get() ? "has seed" : "starts elsewhere, with seed", seed);
  }
  if (root->seed) {
    for (Parameter* parameter : root->parameters) parameter->drop_early_gradient();
  }
  root->grad = Tensor::from_host(loss.context(), loss.shape(), std::vector<float>{seed});

  // Newest first is a topological order: an op is always newer than what it consumed. `keep` holds each node's owner until its
  // consumers have let go of it.
  std::sort(nodes.begin(), nodes.end(), [](const Node* a, const Node* b) { return a->sequence > b->sequence; });
  std::vector<std::shared_ptr<Node>> keep;
  for (Node* node : nodes) {
    run(*node);
    for (auto& input : node->inputs) {
      if (input && input->producer) keep.push_back(input->producer);
      input.reset();
    }
  }
}

}  // namespace zs
