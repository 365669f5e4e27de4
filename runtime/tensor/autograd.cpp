#include "runtime/tensor/autograd.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/constant.h"

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

/// Scope of an op's backward, where what it saved is looked at; `began`: number of the last op before the first.
class SavedScope {
 public:
  SavedScope(const Node& node, std::uint64_t began)
      : saved_{node.name, node.sequence, began}, guard_(node.grad.context(), with_saved(node.grad.context())) {
    node.grad.note_write();  // a gradient may have been computed in forward, and was not saved
  }

 private:
  OpMode with_saved(const Context& context) const {
    OpMode mode = context.mode();
    mode.saved = &saved_;
    return mode;
  }

  const SavedCheck saved_;
  const OpModeGuard guard_;
};

void run_adding_backward(Node& node, std::uint64_t began) {
  AutogradState* const input = node.inputs.front().get();
  if (node.grad) {
    Tensor held = input ? take_gradient(*input) : Tensor{};
    if (held) held.note_write();  // a sum may be of an earlier backward
    const SavedScope scope(node, began);
    Tensor grad = node.adding_backward(node.grad, std::move(held));
    if (input) {
      check_gradient(node, 0, grad);
      put_gradient(*input, std::move(grad));
    }
  }
  node.grad = {};
  node.adding_backward = nullptr;
}

void run_backward(Node& node, std::uint64_t began) {
  if (node.adding_backward) return run_adding_backward(node, began);
  const bool is_run = static_cast<bool>(node.grad);
  std::vector<Tensor> grads;
  if (is_run) {
    const SavedScope scope(node, began);
    grads = node.backward(node.grad);
  }
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

void run_with_shares(Node& node, std::uint64_t began) {
  if (!node.grad || node.seed) return run_backward(node, began);  // with a seed they were given in forward
  SharesScope shares(node);
  run_backward(node, began);
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
  Walk(const Node* start, float seed, std::uint64_t began) : start_(start), seed_(seed), began_(began) {}

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
      run_with_shares(node, began_);
    }
    for (Parameter* parameter : node.parameters) {
      parameter->drop_use();
      owner_of(node, *parameter).after_backward(*parameter);
    }
  }

  /// The ops that it records take its place: they come next, and have added their own uses of the parameters.
  void run_again(Node& node) {
    const std::uint64_t before = node.grad ? node.grad.context().next_sequence() : 0;
    std::shared_ptr<AutogradState> output;
    if (node.grad) {
      const SavedScope scope(node, began_);
      output = node.rerun();
    }
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
  std::uint64_t began_;
  std::vector<Node*> to_run_;  // the newest last
  std::vector<std::shared_ptr<Node>> keep_;
};

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
  Walk walk(root.get(), seed, loss.context().next_sequence());
  walk.enter(root, 0);
  root->grad = constant(loss.context(), loss.shape(), seed);
  walk.run();
}

}  // namespace zs
