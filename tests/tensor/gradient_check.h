#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/tensor/ops.h"
#include "tests/tensor/plain_owner.h"
#include "tests/tensor/reference.h"

namespace zs::test {

/// An input or a parameter of the op under test.
struct Argument {
  Shape shape;
  Values values;
  /// Elements whose gradient is compared; empty: all of them.
  std::vector<std::size_t> sample = {};
};

/// Normal numbers with this deviation around this mean, drawn by `name`.
Argument normal(Shape shape, const char* name, double deviation = 1, double mean = 0);
std::vector<std::int32_t> random_ids(std::int64_t count, std::int64_t classes, std::uint64_t seed);

/// An op as the runtime runs it, and as the double reference computes it from the same arguments (inputs, then
/// parameters).
struct OpUnderTest {
  std::vector<Argument> inputs, parameters;
  std::function<Tensor(Context& context, const std::vector<Tensor>& inputs, const std::vector<Parameter*>& parameters)>
      run;
  std::function<Values(const std::vector<Values>& arguments)> reference;
};

struct Precisions {
  const char* name;
  DType value, grad;  ///< of inputs and parameters; of the parameters' gradient buffers
  double tolerance;   ///< largest error of an element, in units of the largest element of its tensor
};

/// f32: ten to thirty roundings of 6e-8 each meet in one element; 6e-7 was the worst seen.
/// bf16: outputs, saved activations and passed gradients are each rounded to 8 bits, 2^-9 relative each; two or three
/// such roundings meet in one element; 5.5e-3 was the worst seen.
inline constexpr Precisions kF32{"f32", DType::f32, DType::f32, 2e-6};
inline constexpr Precisions kBf16{"bf16", DType::bf16, DType::f32, 1e-2};
inline constexpr Precisions kBf16Grads{"bf16 with bf16 gradients", DType::bf16, DType::bf16, 1e-2};

/// Runs the op in these precisions, and compares its output with the reference and its gradients, of a randomly
/// weighted sum of the output, with central differences of the reference in double precision.
void check_gradients(const OpUnderTest& op, const Precisions& precisions);
/// On this device, whose work is done, in memory that the host reaches, when it is enqueued.
void check_gradients(Device& device, const OpUnderTest& op, const Precisions& precisions);

/// Scalar f32: sum of weights * y. An op like any other, made of record_op and launch.
Tensor weighted_sum(const Tensor& y, const std::vector<float>& weights);

/// Central differences of `loss` by each (sampled) element of each argument.
std::vector<Values> central_differences(const std::vector<Argument>& arguments,
                                        const std::function<double(const std::vector<Values>&)>& loss);

/// Fails unless every (sampled) element of `got` is within tolerance * max |want| of `want`.
void check_close(const std::string& what, const std::vector<float>& got, const Values& want, double tolerance,
                 const std::vector<std::size_t>& sample = {});

/// The nearest values that this dtype can hold.
Values rounded(const Values& values, DType dtype);
std::vector<float> to_floats(const Values& values);

/// What its trace has, in order.
std::vector<std::string> names_of_ops(Device& device);

}  // namespace zs::test
