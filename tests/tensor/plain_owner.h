#pragma once

#include <fmt/core.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "runtime/tensor/autograd.h"

namespace zs::test {

/// Holds whole parameters without sharding: values bound all the time, gradient buffers from a parameter's first
/// backward on. A new gradient buffer is full of NaN, so that a backward which adds where it should overwrite shows.
/// Owns the values and gradients, not the parameters, which are of no use without it.
class PlainOwner : public ParameterOwner {
 public:
  PlainOwner(Context& context, DType dtype, DType grad_dtype, Context* context_of_ops = nullptr)
      : ParameterOwner(context_of_ops), context_(context), dtype_(dtype), grad_dtype_(grad_dtype) {}
  explicit PlainOwner(Context& context) : PlainOwner(context, DType::f32, DType::f32) {}
  PlainOwner(const PlainOwner&) = delete;
  PlainOwner& operator=(const PlainOwner&) = delete;

  void add(Parameter& parameter, const std::vector<float>& values) {
    Held& held = held_[&parameter];
    held.value = Tensor::from_host(context_, parameter.shape(), values, dtype_);
    parameter.bind(held.value.buffer());
    parameter.set_owner(this);
  }

  void before_backward(Parameter& parameter) override {
    Held& held = held_.at(&parameter);
    if (held.grad) return;
    const std::vector<float> unwritten(static_cast<std::size_t>(parameter.numel()),
                                       std::numeric_limits<float>::quiet_NaN());
    held.grad = Tensor::from_host(context_, parameter.shape(), unwritten, grad_dtype_);
    parameter.bind_grad(held.grad.buffer(), false);
  }
  void after_backward(Parameter&) override {}

  /// Empty when the parameter took no part in a backward.
  Tensor grad(Parameter& parameter) const { return held_.at(&parameter).grad; }
  void clear_gradients() {
    for (auto& [parameter, held] : held_) {
      parameter->bind_grad();
      held.grad = {};
    }
  }

 private:
  struct Held {
    Tensor value, grad;
  };
  Context& context_;
  DType dtype_, grad_dtype_;
  std::map<Parameter*, Held> held_;
};

/// Writes down every call, with the uses that were still to come.
class LoggingOwner final : public PlainOwner {
 public:
  using PlainOwner::PlainOwner;
  void before_backward(Parameter& parameter) override {
    log.push_back(fmt::format("before {} {}", parameter.name(), parameter.pending_uses()));
    PlainOwner::before_backward(parameter);
  }
  void after_backward(Parameter& parameter) override {
    log.push_back(fmt::format("after {} {}{}", parameter.name(), parameter.pending_uses(),
                              parameter.is_grad_written() ? "" : " unwritten"));
  }
  std::vector<std::string> log;
};

}  // namespace zs::test
