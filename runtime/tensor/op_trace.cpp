#include "runtime/tensor/op_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/parameter.h"

namespace zs {
namespace {

/// State of what comes from a cut input. Never destroyed: where one rank of a process calls exit(), others still run.
const std::shared_ptr<AutogradState>& mark() {
  static const auto& state = *new std::shared_ptr<AutogradState>(std::make_shared<AutogradState>());
  return state;
}

/// True if gradients flow through the op, in a first run or a second.
bool takes_part(const std::vector<Tensor>& inputs, const std::vector<Parameter*>& parameters) {
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const Parameter* parameter) { return parameter && parameter->is_trainable(); }) ||
         std::any_of(inputs.begin(), inputs.end(), [](const Tensor& input) {
           return input && (input.requires_grad() || input.autograd() == mark());
         });
}

std::vector<Parameter*> without_nulls(const std::vector<Parameter*>& parameters) {
  std::vector<Parameter*> named;
  std::copy_if(parameters.begin(), parameters.end(), std::back_inserter(named), [](const auto* one) { return one; });
  return named;
}

}  // namespace

std::string OpTrace::Op::describe() const {
  std::string text = fmt::format("op {} with result {}", name, shape.str());
  for (const Parameter* parameter : parameters)
    text += fmt::format("{}{}", parameter == parameters.front() ? " of parameter " : ", ", parameter->name());
  return text;
}

Tensor OpTrace::cut(const Tensor& input) {
  Tensor copy = input.detach();
  if (input && (input.requires_grad() || input.autograd() == mark())) copy.set_autograd(mark());
  return copy;
}

void OpTrace::note(const std::string& name, Tensor& output, const std::vector<Tensor>& inputs,
                   const std::vector<Parameter*>& parameters) {
  for (const Tensor& input : inputs)
    if (input && input.requires_grad())
      throw UsageError(fmt::format("op {} of a recomputed function takes a tensor that wants a gradient and is none of "
                                   "the function's inputs",
                                   name),
                       "pass it in among the inputs");
  const std::vector<Parameter*> named = without_nulls(parameters);
  for (Parameter* parameter : named)
    if (std::find(parameters_.begin(), parameters_.end(), parameter) == parameters_.end())
      parameters_.push_back(parameter);
  if (!takes_part(inputs, parameters)) return;
  output.set_autograd(mark());
  ops_.push_back({name, output.shape(), named});
}

void OpTrace::repeat(const std::string& name, const Tensor& output, const std::vector<Tensor>& inputs,
                     const std::vector<Parameter*>& parameters) {
  if (!takes_part(inputs, parameters)) return;
  const Op again{name, output.shape(), without_nulls(parameters)};
  if (next_ == ops_.size() || !(ops_[next_] == again)) refuse(&again);
  ++next_;
}

void OpTrace::end() const {
  if (next_ != ops_.size()) refuse(nullptr);
}

void OpTrace::refuse(const Op* again) const {
  throw UsageError(fmt::format("a recomputed function runs {} when it runs again, where it first ran {}",
                               again ? again->describe() : "no further op",
                               next_ < ops_.size() ? ops_[next_].describe() : "no further op"),
                   "it has to do the same work both times: what it refers to must not change");
}

}  // namespace zs
