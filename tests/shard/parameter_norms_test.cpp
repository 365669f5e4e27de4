// Norms of whole parameters, for optimizers of one's own that go by them: LAMB and LARS.
#include "runtime/shard/optimizers/parameter_norms.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <limits>

#include "tests/message_of.h"
#include "tests/shard/optimizer_run.h"

namespace zs::test::parameter_norms_test {
namespace {

using Catch::Contains;
constexpr float kBeta1 = 0.9f, kBeta2 = 0.99f, kEps = 1e-4f, kDecay = 0.1f, kTrust = 0.05f;

/// You et al. 2020, algorithm 2: w -= lr |w| / |r| r, r = m_hat / (sqrt(v_hat) + eps) + decay w; 1 for a ratio where
/// one of the norms is 0.
struct Lamb : Optimizer {
  explicit Lamb(Executor& executor, bool in_backward = false)
      : Optimizer(executor,
                  {.name = "Lamb",
                   .state = {"m", "v"},
                   .correction = {StepCorrection::Kind::adamw, kBeta1, kBeta2},
                   .has_norms = true},
                  {.weight_decay = kDecay, .clip = 0, .order_free = true, .in_backward = in_backward}) {}
  Update slice_direction() const override {
    return [](ExecContext&, const Slice& s) {
      const StepScalars& step = s.step();
      for (std::int64_t i = 0; step.skip == 0 && i < s.master.elems; ++i) {
        float &g = s.grad.as<float>()[i], &m = s.state[0].as<float>()[i], &v = s.state[1].as<float>()[i];
        m = kBeta1 * m + (1 - kBeta1) * g;
        v = kBeta2 * v + (1 - kBeta2) * g * g;
        g = m / step.bias_correction1 / (std::sqrt(v / step.bias_correction2) + kEps) +
            s.weight_decay * s.master.as<float>()[i];
      }
    };
  }
  Update slice_update() const override {
    return [](ExecContext&, const Slice& s) {
      const float w = s.weight_norm(), r = s.direction_norm(), ratio = w > 0 && r > 0 ? w / r : 1;
      for (std::int64_t i = 0; s.step().skip == 0 && i < s.master.elems; ++i)
        s.master.as<float>()[i] -= s.step().lr * ratio * s.grad.as<float>()[i];
    };
  }
};

/// You et al. 2017, without momentum: w -= lr trust |w| / (|g| + decay |w|) (g + decay w). It needs no direction.
struct Lars : Optimizer {
  explicit Lars(Executor& executor)
      : Optimizer(executor, {.name = "Lars", .has_norms = true},
                  {.weight_decay = kDecay, .clip = 0, .order_free = true}) {}
  Update slice_update() const override {
    return [](ExecContext&, const Slice& s) {
      const float w = s.weight_norm(), local = kTrust * w / (s.direction_norm() + s.weight_decay * w + kEps);
      for (std::int64_t i = 0; s.step().skip == 0 && i < s.master.elems; ++i) {
        float& element = s.master.as<float>()[i];
        element -= s.step().lr * local * (s.grad.as<float>()[i] + s.weight_decay * element);
      }
    };
  }
};

template <class Kind>
Make make() {
  return [](Executor& executor) { return std::make_unique<Kind>(executor); };
}

double norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

std::vector<double> weights_of(const std::vector<Element>& elements) {
  std::vector<double> weights;
  for (const Element& element : elements) weights.push_back(element.w);
  return weights;
}

void lamb_rule(std::vector<Element>& elements, const float* grad, const FlatView& view, int step) {
  const auto b1 = static_cast<double>(kBeta1), b2 = static_cast<double>(kBeta2);
  std::vector<double> r;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    auto& [w, m, v] = elements[i];
    const auto g = static_cast<double>(grad[i]);
    m = b1 * m + (1 - b1) * g;
    v = b2 * v + (1 - b2) * g * g;
    r.push_back(m / (1 - std::pow(b1, step)) / (std::sqrt(v / (1 - std::pow(b2, step))) + static_cast<double>(kEps)) +
                (view.has_decay ? static_cast<double>(kDecay) : 0) * w);
  }
  const double of_weights = norm(weights_of(elements)), ratio = of_weights > 0 ? of_weights / norm(r) : 1;
  for (std::size_t i = 0; i < elements.size(); ++i) elements[i].w -= kLr * ratio * r[i];
}

void lars_rule(std::vector<Element>& elements, const float* grad, const FlatView& view, int) {
  const double decay = view.has_decay ? static_cast<double>(kDecay) : 0, w = norm(weights_of(elements));
  const double g = norm(std::vector<double>(grad, grad + elements.size()));
  const double local = static_cast<double>(kTrust) * w / (g + decay * w + static_cast<double>(kEps));
  for (std::size_t i = 0; i < elements.size(); ++i)
    elements[i].w -= kLr * local * (static_cast<double>(grad[i]) + decay * elements[i].w);
}

}  // namespace

TEST_CASE("20 steps of LAMB and LARS of one's own are those of plain arithmetic, in every strategy and layout") {
  constexpr double kTolerance = 1e-4;  // f32 states, over 20 steps
  check_everywhere(make<Lamb>(), lamb_rule, kTolerance);
  check_everywhere(make<Lars>(), lars_rule, kTolerance);
}

TEST_CASE("norms of parameters are the same bits in every scheme and layout, at any number of ranks, in bf16 too") {
  const DType param = GENERATE(DType::f32, DType::bf16);
  const Arrays one = on_ranks(1, [&](World& world) { return train(world, {}, make<Lamb>(), param); })[0];
  const LayoutOptions whole{.layout = Layout::per_parameter, .min_shard_bytes = 100};
  for (const std::string& name : scheme_names()) {
    CAPTURE(name, name_of(param));
    CHECK(on_ranks(4, [&](World& world) { return train(world, scheme_of(name, 4), make<Lamb>(), param); })[3] == one);
    CHECK(on_ranks(2, [&](World& world) {
            Run run(world, scheme_of(name, 2), make<Lamb>(), param, whole);
            for (int step = 1; step <= 3; ++step) run.step(step);
            return run.weights();
          })[1] == one);
  }
}

TEST_CASE("a step that is skipped has no direction, and a frozen parameter no norm") {
  const Arrays expected = on_ranks(1, [](World& world) {
    Run run(world, {}, make<Lamb>());
    run.model.layers[0]->weight.set_trainable(false);
    for (int step = 1; step <= 3; ++step) run.step(step);
    return run.weights();
  })[0];
  const Arrays skipped = on_ranks(2, [](World& world) {
    Run run(world, {}, make<Lamb>());
    run.model.layers[0]->weight.set_trainable(false);
    run.step(1);
    run.runtime.begin_micro_batch(Mode::train, true);
    backward(run.model.loss(chain_input(run.context, 0, run.dtype), chain_targets(run.context)),
             std::numeric_limits<float>::quiet_NaN());
    run.runtime.end_micro_batch();
    run.optimizer->step(static_cast<float>(kLr), 2);
    for (int step = 2; step <= 3; ++step) run.step(step);
    return run.weights();
  })[1];
  CHECK(skipped == expected);
}

TEST_CASE("norms of parameters do not go with the host's parts, or with updates in backward") {
  const auto world = make_single_world({.timeout_s = 60});
  CHECK_THAT(message_of([&] { Run(*world, {}, make<Lamb>(), DType::f32, {}, {.has_moments_on_host = true}); }),
             Contains("Lamb goes by norms of whole parameters, and the host keeps something of unit"));
  CHECK_THAT(
      message_of([&] { Run(*world, {}, [](Executor& executor) { return std::make_unique<Lamb>(executor, true); }); }),
      Contains("Lamb in backward goes by norms of whole parameters, which are known behind it"));
}

}  // namespace zs::test::parameter_norms_test
