#include "tests/tensor/gradient_check.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <memory>
#include <numeric>

#include "runtime/base/random.h"

namespace zs::test {
namespace {

std::vector<std::size_t> sampled(const Argument& argument) {
  if (!argument.sample.empty()) return argument.sample;
  std::vector<std::size_t> all(argument.values.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

struct Outcome {
  std::vector<float> output;
  std::vector<std::vector<float>> gradients;  // inputs, then parameters
};

Outcome run_op(Device& device, const OpUnderTest& op, const std::vector<float>& weights, const Precisions& precisions) {
  Context context(device);
  std::vector<std::unique_ptr<Parameter>> owned;
  PlainOwner owner(context, precisions.value, precisions.grad);
  std::vector<Parameter*> parameters;
  for (const Argument& argument : op.parameters) {
    owned.push_back(
        std::make_unique<Parameter>(fmt::format("parameter{}", owned.size()), argument.shape, Init{}, true));
    parameters.push_back(owned.back().get());
    owner.add(*parameters.back(), to_floats(argument.values));
  }
  std::vector<Tensor> inputs;
  for (const Argument& argument : op.inputs) {
    inputs.push_back(Tensor::from_host(context, argument.shape, to_floats(argument.values), precisions.value));
    inputs.back().set_requires_grad();
  }

  const Tensor y = op.run(context, inputs, parameters);
  backward(y.numel() == 1 && y.dtype() == DType::f32 ? y.reshape({}) : weighted_sum(y, weights));

  Outcome outcome{y.to_host(), {}};
  for (const Tensor& input : inputs)
    outcome.gradients.push_back(input.grad() ? input.grad().to_host() : std::vector<float>{});
  for (Parameter* parameter : parameters) {
    outcome.gradients.push_back(owner.grad(*parameter) ? owner.grad(*parameter).to_host() : std::vector<float>{});
  }
  return outcome;
}

}  // namespace

Argument normal(Shape shape, const char* name, double deviation, double mean) {
  const CounterRng rng(17, hash_name(name));
  Argument argument{shape, {}};
  for (std::int64_t i = 0; i < shape.numel(); ++i) {
    argument.values.push_back(mean + deviation * rng.normal(static_cast<std::uint64_t>(i)));
  }
  return argument;
}

std::vector<std::int32_t> random_ids(std::int64_t count, std::int64_t classes, std::uint64_t seed) {
  const CounterRng rng(seed);
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < count; ++i) {
    ids.push_back(
        static_cast<std::int32_t>(rng.bits(static_cast<std::uint64_t>(i)) % static_cast<std::uint64_t>(classes)));
  }
  return ids;
}

Values rounded(const Values& values, DType dtype) {
  Values out;
  for (const double value : values) {
    const auto single = static_cast<float>(value);
    out.push_back(dtype == DType::bf16 ? static_cast<float>(BFloat16(single)) : single);
  }
  return out;
}

std::vector<float> to_floats(const Values& values) {
  std::vector<float> out;
  std::transform(values.begin(), values.end(), std::back_inserter(out),
                 [](double value) { return static_cast<float>(value); });
  return out;
}

Tensor weighted_sum(const Tensor& y, const std::vector<float>& weights) {
  Context& context = y.context();
  ZS_CHECK(std::cmp_equal(weights.size(), y.numel()), "{} weights for {} elements", weights.size(), y.numel());
  const Tensor w = Tensor::from_host(context, y.shape(), weights, y.dtype());
  Tensor loss = Tensor::empty(context, {}, DType::f32);
  const Buffer out = loss.buffer(), in = y.buffer(), scale = w.buffer();
  const auto element = [](const Buffer& buffer, std::int64_t i) {
    return buffer.dtype == DType::f32 ? buffer.as<float>()[i] : static_cast<float>(buffer.as<BFloat16>()[i]);
  };
  context.launch({"weighted_sum", {in, scale}, {out}}, [out, in, scale, element](ExecContext&) {
    double sum = 0;
    for (std::int64_t i = 0; i < in.elems; ++i) sum += static_cast<double>(element(in, i)) * element(scale, i);
    *out.as<float>() = static_cast<float>(sum);
  });
  // d loss / d y is the weights; the checks walk back from a seed of 1.
  record_op(loss, "weighted_sum", {y}, {}, [w](const Tensor&) { return std::vector<Tensor>{w}; });
  return loss;
}

std::vector<Values> central_differences(const std::vector<Argument>& arguments,
                                        const std::function<double(const std::vector<Values>&)>& loss) {
  // The truncation error is h^2 / 6 of the third derivative, the rounding error 1e-16 / h: both far below any tolerance
  // here.
  constexpr double kStep = 1e-5;
  std::vector<Values> values, gradients;
  for (const Argument& argument : arguments) values.push_back(argument.values);
  for (std::size_t a = 0; a < arguments.size(); ++a) {
    gradients.emplace_back(values[a].size(), 0.0);
    for (const std::size_t i : sampled(arguments[a])) {
      const double here = values[a].at(i);
      values[a][i] = here + kStep;
      const double above = loss(values);
      values[a][i] = here - kStep;
      const double below = loss(values);
      values[a][i] = here;
      gradients[a][i] = (above - below) / (2 * kStep);
    }
  }
  return gradients;
}

void check_close(const std::string& what, const std::vector<float>& got, const Values& want, double tolerance,
                 const std::vector<std::size_t>& sample) {
  INFO(what);
  REQUIRE(got.size() == want.size());
  const std::vector<std::size_t> elements = sampled({{}, want, sample});
  double scale = 1e-30, worst = 0;
  std::size_t where = 0;
  for (const std::size_t i : elements) scale = std::max(scale, std::abs(want[i]));
  for (const std::size_t i : elements) {
    const double error = std::abs(got[i] - want[i]) / scale;
    if (error <= worst) continue;  // a NaN is not
    worst = error;
    where = i;
    if (std::isnan(error)) break;
  }
  if (elements.empty()) return;
  INFO("element " << where << " is " << got[where] << ", expected " << want[where] << ", largest " << scale);
  CHECK(worst <= tolerance);
}

void check_gradients(const OpUnderTest& op, const Precisions& precisions) {
  const auto device = Device::create(DeviceKind::cpu, {.threads = 2, .cpus = {}, .sync_timeout_s = 60});
  check_gradients(*device, op, precisions);
}

void check_gradients(Device& device, const OpUnderTest& op, const Precisions& precisions) {
  INFO("in " << precisions.name);
  OpUnderTest exact = op;
  std::vector<Argument> arguments;
  for (auto* list : {&exact.inputs, &exact.parameters}) {
    for (Argument& argument : *list) {
      argument.values = rounded(argument.values, precisions.value);
      arguments.push_back(argument);
    }
  }
  std::vector<Values> values;
  for (const Argument& argument : arguments) values.push_back(argument.values);
  const Values output = op.reference(values);
  const bool is_loss = output.size() == 1;
  const Values weights =
      is_loss ? Values{1.0}
              : rounded(normal({static_cast<std::int64_t>(output.size())}, "weights").values, precisions.value);

  const Outcome got = run_op(device, exact, to_floats(weights), precisions);
  check_close("output", got.output, output, precisions.tolerance);
  const auto want = central_differences(arguments, [&](const std::vector<Values>& at) {
    const Values y = op.reference(at);
    return std::inner_product(y.begin(), y.end(), weights.begin(), 0.0);
  });
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const bool is_input = i < op.inputs.size();
    const std::string name = is_input ? fmt::format("gradient of input {}", i)
                                      : fmt::format("gradient of parameter {}", i - op.inputs.size());
    check_close(name, got.gradients[i], want[i], precisions.tolerance, arguments[i].sample);
  }
}

std::vector<std::string> names_of_ops(Device& device) {
  std::vector<std::string> names;
  for (const TraceEntry& entry : device.trace().entries())
    if (entry.kind == TraceEntry::Kind::op) names.push_back(entry.op.name);
  return names;
}

}  // namespace zs::test
