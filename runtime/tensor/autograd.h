#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/tensor/parameter.h"
#include "runtime/tensor/tensor.h"

namespace zs {

/// Function from the gradient of an op's output to the gradients of its inputs, in their order, each of its input's
/// shape and dtype; that of an input which wants none is not looked at, and one that wants one and gets none is given
/// no_gradient(). Of each trained parameter it gives its share, by Parameter::add_grad or grad_target, zeros included.
/// Captures what it saved; runs once.
using Backward = std::function<std::vector<Tensor>(const Tensor& grad_output)>;

/// Backward of an op with one input, which adds to what this input's gradient holds so far (`held`; empty: nothing) in
/// its own pass. Returns the sum; where `held` has no other owner (is_sole_owner), the sum may lie there.
using AddingBackward = std::function<Tensor(const Tensor& grad_output, const Tensor& held)>;

/// Tensor that a backward returns for an input that no gradient flows back to. An empty tensor is an error there: it
/// may have been forgotten.
Tensor no_gradient();

/// Runs a recomputed function again and records it. Gives what autograd knows of its output; null when that wants no
/// gradient.
using Rerun = std::function<std::shared_ptr<AutogradState>()>;

/// One recorded op, or one recomputed function. Shared by its output and by the nodes that consumed it.
class Node {
 public:
  Node() = default;
  /// Lets go of the ops that it came from one by one: a graph of any depth is dropped without a deep recursion.
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  std::string name;
  std::uint64_t sequence = 0;
  std::vector<std::shared_ptr<AutogradState>> inputs;  // null where no gradient is wanted
  /// Shape and dtype that the gradient of a tensor must have.
  struct Kind {
    Shape shape;
    DType dtype = DType::f32;
  };
  std::vector<Kind> input_kinds;  // for all inputs: what their gradients must be
  std::vector<Parameter*> parameters;
  Backward backward;
  AddingBackward adding_backward;  // instead of backward
  Rerun rerun;                     // for a recomputed function, instead of backward
  Tensor gelu_input;               // for GELU by tanh: see gelu_input_of
  // Set: the gradients were computed in forward for this seed, so the op must be where backward starts
  std::optional<float> seed;

  bool can_run() const { return backward != nullptr || adding_backward != nullptr || rerun != nullptr; }

  Tensor grad;  // during backward: the sum of what its consumers have contributed so far
};

/// Records that `output` came from `inputs` and `parameters`, when gradients are enabled and any of them wants one. An
/// op calls it last; everything that its backward saves is captured in `backward`, which asks no frozen parameter for
/// its grad_target() (add_grad leaves it alone). An input that wants a gradient, and that the op gives none, is passed
/// detached.
void record_op(Tensor& output, std::string name, const std::vector<Tensor>& inputs,
               const std::vector<Parameter*>& parameters, Backward backward);
/// Records an op of one input whose backward can add to that input's gradient in the pass that makes it.
void record_adding_op(Tensor& output, std::string name, const Tensor& input, const std::vector<Parameter*>& parameters,
                      AddingBackward backward);
/// The backward of an op with several outputs, from the gradients of all of them: zeros where nothing came back to one.
using BackwardOfMany = std::function<std::vector<Tensor>(const std::vector<Tensor>& grad_outputs)>;
/// Records an op with several outputs, otherwise as record_op.
void record_outputs(std::vector<Tensor>& outputs, const std::string& name, const std::vector<Tensor>& inputs,
                    const std::vector<Parameter*>& parameters, BackwardOfMany backward);
/// x, whose gradient is given to f when it comes back: f may look at it, and give another one, of x's shape and dtype,
/// to go on in its place, or an empty tensor.
Tensor on_gradient(const Tensor& x, std::function<Tensor(const Tensor& grad)> f);
/// Records a recomputed function, otherwise as record_op: backward calls `rerun`, then walks what that recorded in
/// place of this node. See recompute.h.
void record_rerun(Tensor& output, const std::vector<Tensor>& inputs, const std::vector<Parameter*>& parameters,
                  Rerun rerun);

/// Reverse-mode over everything `loss` (a scalar) came from, newest op first. d loss / d loss is `seed`. Enqueues, and
/// returns when all of it is enqueued. Frees each node's saved tensors as it goes; a graph can be walked once.
void backward(const Tensor& loss, float seed = 1.0f);

}  // namespace zs
