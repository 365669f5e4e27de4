#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/tensor/recompute.h"
#include "tests/tensor/gradient_check.h"

namespace zs::test {

using Floats = std::vector<float>;
using Tensors = std::vector<Tensor>;

inline constexpr std::int64_t kRows = 5, kWidth = 6;

/// A CPU device with a context and five square weights, w0 to w4.
struct RecomputeMachine {
  explicit RecomputeMachine(DType dtype = DType::f32, DeviceKind kind = DeviceKind::cpu)
      : device(Device::create(kind, {.threads = 2, .cpus = {}, .sync_timeout_s = 60})),
        context(*device),
        owner(context, dtype, DType::f32) {
    for (int i = 0; i < 5; ++i) {
      const std::string name = fmt::format("w{}", i);
      weights.push_back(std::make_unique<Parameter>(name, Shape{kWidth, kWidth}, Init{}, true));
      owner.add(*weights.back(), to_floats(normal({kWidth, kWidth}, name.c_str(), 0.5).values));
    }
  }
  Tensor tensor(const char* name, DType dtype = DType::f32) {
    return Tensor::from_host(context, {kRows, kWidth}, to_floats(normal({kRows, kWidth}, name).values), dtype);
  }
  Tensor leaf(const char* name, DType dtype = DType::f32) {
    Tensor x = tensor(name, dtype);
    x.set_requires_grad();
    return x;
  }
  Tensor through(const Tensor& x, std::size_t weight) { return linear(x, *weights[weight], nullptr); }
  Floats grad(std::size_t weight) {
    return owner.grad(*weights[weight]) ? owner.grad(*weights[weight]).to_host() : Floats{};
  }
  std::int64_t activations() const {
    const auto& labels = device->memory().live_by_label();
    return labels.count("activation") == 0 ? 0 : labels.at("activation");
  }

  std::unique_ptr<Device> device;
  Context context;
  std::vector<std::unique_ptr<Parameter>> weights;  // outlive their owner
  PlainOwner owner;
};

inline Tensor sum_of(const Tensor& y) { return weighted_sum(y, to_floats(normal(y.shape(), "sum").values)); }

/// Calls the function, or recomputes it.
using Caller = std::function<Tensor(Tensors, const TensorFunction&)>;
inline const Caller kPlain = [](const Tensors& inputs, const TensorFunction& function) { return function(inputs); };
inline const Caller kRecomputed = [](Tensors inputs, const TensorFunction& function) {
  return recompute(std::move(inputs), function);
};

}  // namespace zs::test
