// Optimizers behind one interface: what they share, and one of a user's own.
#include "runtime/shard/optimizers/optimizer.h"

#include <catch2/catch.hpp>

#include <cmath>

#include "runtime/shard/checkpoint/checkpoint.h"
#include "runtime/shard/optimizers/adamw8bit.h"
#include "runtime/shard/optimizers/lion.h"
#include "runtime/shard/optimizers/schedule_free.h"
#include "runtime/shard/optimizers/sgd.h"
#include "tests/message_of.h"
#include "tests/model/temp_dir.h"
#include "tests/shard/optimizer_run.h"
#include "tests/skip.h"

namespace zs::test::optimizer_test {
namespace {

using Catch::Contains;
/// The formula of Chen et al. 2023, on the host: w -= lr (sign(b1 m + (1 - b1) g) + decay w), m = b2 m + (1 - b2) g.
struct OwnLion : Optimizer {
  explicit OwnLion(Executor& executor, std::vector<ParameterGroup> groups = {})
      : Optimizer(executor, {.name = "Own", .state = {"m"}},
                  {.weight_decay = 0.1f, .order_free = true, .groups = std::move(groups)}) {}
  Update slice_update() const override {
    return [](ExecContext&, const Slice& s) {
      const StepScalars& step = s.step();
      for (std::int64_t i = 0; step.skip == 0 && i < s.master.elems; ++i) {
        float &w = s.master.as<float>()[i], &m = s.state[0].as<float>()[i];
        const float g = s.grad.as<float>()[i] * step.clip_coefficient, c = 0.9f * m + 0.1f * g;
        w -= step.lr * (static_cast<float>((c > 0) - (c < 0)) + s.weight_decay * w);
        m = 0.99f * m + 0.01f * g;
      }
    };
  }
};

struct NoUpdate : Optimizer {
  explicit NoUpdate(Executor& executor) : Optimizer(executor, {.name = "Own"}, {}) {}
};

Make sgd(const SgdConfig& config) { return maker_of<Sgd>(config); }
Make own(const std::vector<ParameterGroup>& groups = {}) {
  return [groups](Executor& executor) { return std::make_unique<OwnLion>(executor, groups); };
}

Rule rule_of(const SgdConfig& config) {
  return [momentum = static_cast<double>(config.momentum), decay = static_cast<double>(config.weight_decay),
          nesterov = config.nesterov](Element& element, double grad, bool has_decay, int) {
    const double g = grad + (has_decay ? decay : 0) * element.w;
    element.m = momentum * element.m + g;
    element.w -= kLr * (nesterov ? g + momentum * element.m : element.m);
  };
}

Rule rule_of(const AdamWConfig& config) {
  return [b1 = static_cast<double>(config.beta1), b2 = static_cast<double>(config.beta2),
          eps = static_cast<double>(config.eps),
          decay = static_cast<double>(config.weight_decay)](Element& element, double g, bool has_decay, int step) {
    element.m = b1 * element.m + (1 - b1) * g;
    element.v = b2 * element.v + (1 - b2) * g * g;
    const double m = element.m / (1 - std::pow(b1, step)), v = element.v / (1 - std::pow(b2, step));
    element.w -= kLr * (m / (std::sqrt(v) + eps) + (has_decay ? decay : 0) * element.w);
  };
}

/// Defazio et al. 2024, algorithm 1 with AdamW's step: w is y, m is z.
Rule rule_of(const ScheduleFreeConfig& config) {
  return [b1 = static_cast<double>(config.beta1), b2 = static_cast<double>(config.beta2),
          eps = static_cast<double>(config.eps),
          decay = static_cast<double>(config.weight_decay)](Element& element, double g, bool has_decay, int step) {
    auto& [y, z, v] = element;
    if (step == 1) z = y;
    const double x = (y - (1 - b1) * z) / b1, c = 1.0 / step;
    v = b2 * v + (1 - b2) * g * g;
    z -= kLr * (g / (std::sqrt(v / (1 - std::pow(b2, step))) + eps) + (has_decay ? decay : 0) * y);
    y = (1 - b1) * z + b1 * ((1 - c) * x + c * z);
  };
}

/// Near 0 a sign depends on how a sum is rounded: there is no such element here.
Rule rule_of(const LionConfig& config) {
  return [b1 = static_cast<double>(config.beta1), b2 = static_cast<double>(config.beta2),
          decay = static_cast<double>(config.weight_decay)](Element& element, double g, bool has_decay, int) {
    const double mean = b1 * element.m + (1 - b1) * g;
    element.w -= kLr * (static_cast<double>((mean > 0) - (mean < 0)) + (has_decay ? decay : 0) * element.w);
    element.m = b2 * element.m + (1 - b2) * g;
  };
}

}  // namespace

TEST_CASE("SGD follows its formula, and trains to the same bits in every scheme, at any number of ranks") {
  const SgdConfig config =
      GENERATE(SgdConfig{.order_free = true}, SgdConfig{.momentum = 0.9f, .weight_decay = 0.1f, .order_free = true},
               SgdConfig{.momentum = 0.5f, .nesterov = true, .weight_decay = 0.01f, .order_free = true});
  if (is_thinned_out()) return;
  const Arrays formula = by_formula(sgd(config), each(rule_of(config)), 3, 4),
               one = on_ranks(1, [&](World&world) { return train(world, {}, sgd(config)); })[0];
  for (std::size_t i = 0; i < one.size(); ++i)
    for (std::size_t j = 0; j < one[i].size(); ++j)
      CHECK(one[i][j] == Approx(formula[i][j]).epsilon(1e-5).margin(1e-6));
  for (const std::string& name : scheme_names()) {
    CAPTURE(name, config.momentum);
    for (const int ranks : {2, 4})
      CHECK(on_ranks(ranks, [&](World& world) {
              return train(world, scheme_of(name, ranks), sgd(config));
            })[ranks - 1] == one);
  }
}

TEST_CASE(
    "20 steps of AdamW, SGD, Lion and schedule-free AdamW are those of plain arithmetic, in every strategy and "
    "layout") {
  constexpr double kTolerance = 1e-4;  // f32 states, over 20 steps
  const int which = GENERATE(0, 1, 2, 3);
  if (is_thinned_out()) return;
  CAPTURE(which);
  const AdamWConfig adamw{.eps = 1e-4f, .clip = 0, .order_free = true};
  const SgdConfig momentum{.momentum = 0.9f, .weight_decay = 0.1f, .order_free = true};
  const LionConfig lion{.clip = 0, .order_free = true};
  if (which == 0) check_everywhere(maker_of<AdamW>(adamw), each(rule_of(adamw)), kTolerance);
  if (which == 1) check_everywhere(sgd(momentum), each(rule_of(momentum)), kTolerance);
  const ScheduleFreeConfig free{.eps = 1e-4f, .clip = 0, .order_free = true};
  if (which == 2) check_everywhere(maker_of<Lion>(lion), each(rule_of(lion)), kTolerance);
  if (which == 3) check_everywhere(maker_of<ScheduleFreeAdamW>(free), each(rule_of(free)), kTolerance);
}

TEST_CASE("an optimizer of one's own trains to the same bits in every scheme, in bf16 too") {
  const DType param = GENERATE(DType::f32, DType::bf16);
  const Arrays one = on_ranks(1, [&](World& world) { return train(world, {}, own(), param); })[0];
  for (const std::string& name : scheme_names()) {
    CAPTURE(name, name_of(param));
    CHECK(on_ranks(4, [&](World& world) { return train(world, scheme_of(name, 4), own(), param); })[3] == one);
  }
}

TEST_CASE("I2: the state of any optimizer is saved by name, and goes on at another number of ranks") {
  const Make make = GENERATE(own(), maker_of<Lion>(LionConfig{.order_free = true}),
                             maker_of<ScheduleFreeAdamW>(ScheduleFreeConfig{.order_free = true}),
                             sgd({.momentum = 0.9f, .clip = 0.5f, .order_free = true}), sgd({.order_free = true}));
  const Arrays expected = on_ranks(1, [&](World& world) {
    Run run(world, {}, make);
    for (int step = 1; step <= 4; ++step) run.step(step);
    return run.weights();
  })[0];
  const TempDir folder;
  const auto go = [&](int ranks, const std::string& scheme, bool is_first) {
    return on_ranks(ranks, [&](World& world) {
      Run run(world, scheme_of(scheme, ranks), make);
      const TrainingState state{world, run.runtime.executor(), *run.optimizer};
      if (!is_first) load(state, folder.path() + "/step-2");
      for (int step = is_first ? 1 : 3; step <= (is_first ? 2 : 4); ++step) run.step(step);
      if (is_first) save(state, folder.path(), {.step = 2, .attributes = {}});
      return run.weights();
    });
  };
  go(4, "hsdp", true);
  CHECK(go(2, "zero3", false)[1] == expected);
  CHECK(go(1, "zero3", false)[0] == expected);
}

TEST_CASE("an average of the weights follows its formula, changes no weight, and is exchanged with them and back") {
  constexpr float kDecay = 0.75f;
  const auto world = make_single_world({.timeout_s = 60});
  Run run(*world, {}, sgd({.momentum = 0.9f, .order_free = true, .average = kDecay})),
      plain(*world, {}, sgd({.momentum = 0.9f, .order_free = true}));
  run.optimizer->swap_average();  // nothing yet
  CHECK(run.weights() == plain.weights());
  Arrays expected;
  for (int step = 1; step <= 4; ++step) {
    run.step(step), plain.step(step);
    const Arrays weights = plain.weights();
    CHECK(run.weights() == weights);
    if (step == 1) expected = weights;
    for (std::size_t i = 0; i < weights.size(); ++i)
      for (std::size_t j = 0; j < weights[i].size(); ++j)
        expected[i][j] = kDecay * expected[i][j] + (1 - kDecay) * weights[i][j];
  }
  run.optimizer->swap_average();
  CHECK(distance(run.weights(), expected) < 1e-6);
  run.optimizer->swap_average();
  CHECK(run.weights() == plain.weights());
  CHECK_THAT(message_of([&] { plain.optimizer->swap_average(); }), Contains("Sgd has no average"));
  CHECK_THAT(message_of([&] { Run(*world, {}, sgd({.average = 1})); }), Contains("an average with the decay 1"));
}

TEST_CASE("an average of the weights has the same bits in every scheme and layout, and goes on from a checkpoint") {
  const Make make = GENERATE(maker_of<AdamW>(AdamWConfig{.order_free = true, .average = 0.5f}),
                             maker_of<AdamW8bit>(AdamWConfig{.order_free = true, .average = 0.5f}),
                             maker_of<Lion>(LionConfig{.order_free = true, .average = 0.5f}),
                             maker_of<ScheduleFreeAdamW>(ScheduleFreeConfig{.order_free = true}));
  if (is_thinned_out()) return;
  const auto average = [&](int ranks, const std::string& scheme, const LayoutOptions& layout, const std::string& from,
                           const std::string& to) {
    return on_ranks(ranks, [&](World& world) {
      Run run(world, scheme_of(scheme, ranks), make, DType::bf16, layout);
      const TrainingState state{world, run.runtime.executor(), *run.optimizer};
      if (!from.empty()) load(state, from);
      for (int step = from.empty() ? 1 : 3; step <= (to.empty() ? 4 : 2); ++step) run.step(step);
      if (!to.empty()) save(state, to, {.step = 2, .attributes = {}});
      run.optimizer->swap_average();
      return run.weights();
    })[0];
  };
  const LayoutOptions rows{.layout = Layout::per_parameter, .min_shard_bytes = 30};
  const Arrays one = average(1, "zero3", {}, "", "");
  for (const std::string& name : scheme_names()) {
    CAPTURE(name);
    CHECK(average(4, name, {}, "", "") == one);
  }
  CHECK(average(4, "hsdp", rows, "", "") == one);
  const TempDir folder;
  average(4, "zero3", {}, "", folder.path());
  CHECK(average(2, "zero2", rows, folder.path() + "/step-2", "") == one);
}

TEST_CASE("schedule-free AdamW is evaluated at the average of its points by squared learning rates, and goes on") {
  const auto world = make_single_world({.timeout_s = 60});
  const double b1 = 0.8, lrs[] = {0.01, 0.02, 0.0, 0.05};
  const Make make = maker_of<ScheduleFreeAdamW>(ScheduleFreeConfig{.beta1 = 0.8f, .eps = 1e-4f, .order_free = true});
  Run run(*world, {}, make), undisturbed(*world, {}, make);
  const auto as_doubles = [](const Arrays& arrays) {
    std::vector<std::vector<double>> all;
    for (const auto& values : arrays) all.emplace_back(values.begin(), values.end());
    return all;
  };
  auto x = as_doubles(run.weights()), z = x;
  double sum = 0;
  for (int step = 1; step <= 4; ++step) {
    const double lr = lrs[step - 1], c = lr * lr / (sum += lr * lr);
    for (Run* of : {&run, &undisturbed}) {
      of->accumulate(step);
      of->optimizer->step(static_cast<float>(lr), step);
    }
    const Arrays y = run.weights();  // z follows from it and the x before, whatever the gradient was
    CHECK(y == undisturbed.weights());
    for (std::size_t i = 0; i < y.size(); ++i)
      for (std::size_t j = 0; j < y[i].size(); ++j) {
        // y = (1 - b1) z + b1 ((1 - c) x + c z)
        z[i][j] = (static_cast<double>(y[i][j]) - b1 * (1 - c) * x[i][j]) / (1 - b1 + b1 * c);
        x[i][j] = (1 - c) * x[i][j] + c * z[i][j];
      }
    run.optimizer->swap_average();
    const Arrays evaluated = run.weights();
    double most = 0;
    for (std::size_t i = 0; i < x.size(); ++i)
      for (std::size_t j = 0; j < x[i].size(); ++j)
        most = std::max(most, std::abs(static_cast<double>(evaluated[i][j]) - x[i][j]));
    CHECK(most < 2e-6);
    if (step == 2)
      CHECK_THAT(message_of([&] { run.optimizer->set_scalars(0.1f, 3); }), Contains("is in the place of the weights"));
    run.optimizer->swap_average();
    CHECK(run.weights() == y);
  }
  CHECK_THAT(message_of([&] { Run(*world, {}, maker_of<ScheduleFreeAdamW>(ScheduleFreeConfig{.beta1 = 0})); }),
             Contains("a beta1 of 0"));
  CHECK_THAT(message_of([&] { Run(*world, {}, maker_of<ScheduleFreeAdamW>(ScheduleFreeConfig{.average = 0.5f})); }),
             Contains("an average of the weights, which it has of its own"));
}

TEST_CASE("who loads the weights of schedule-free AdamW alone gets those for use, at any number of ranks") {
  const Make make = maker_of<ScheduleFreeAdamW>(ScheduleFreeConfig{.order_free = true});
  const TempDir folder;
  const Arrays used = on_ranks(3, [&](World& world) {
    Run run(world, scheme_of("zero3", 3), make);
    for (int step = 1; step <= 3; ++step) run.step(step);
    const TrainingState state{world, run.runtime.executor(), *run.optimizer};
    save(state, folder.path(), {.step = 3, .attributes = {{"a key", "a value"}}});
    run.optimizer->swap_average();
    return run.weights();
  })[0];
  for (const int ranks : {1, 2})
    CHECK(on_ranks(ranks, [&](World& world) {
            Run run(world, scheme_of("zero3", ranks), make);
            const CheckpointInfo info = load_weights(world, run.runtime.executor(), folder.path() + "/step-3");
            CHECK(info.attributes == std::map<std::string, std::string>{{"a key", "a value"}});
            return run.weights();
          })[0] == used);
}

TEST_CASE("a checkpoint of another optimizer is refused, with what is missing") {
  const TempDir folder;
  const auto world = make_single_world({.timeout_s = 60});
  Run own_run(*world, {}, own());
  save({*world, own_run.runtime.executor(), *own_run.optimizer}, folder.path(), {.step = 0, .attributes = {}});
  Run other(*world, {}, sgd({.momentum = 0.9f}));
  CHECK_THAT(message_of([&] {
               load({*world, other.runtime.executor(), *other.optimizer}, folder.path() + "/step-0");
             }),
             Contains("another optimizer: own.m, here sgd.momentum"));
  Run plain(*world, {}, sgd({}));
  CHECK_THAT(message_of([&] {
               load({*world, plain.runtime.executor(), *plain.optimizer}, folder.path() + "/step-0");
             }),
             Contains("another optimizer: own.m, here none"));
  CHECK(load_weights(*world, plain.runtime.executor(), folder.path() + "/step-0").step == 0);
}

TEST_CASE("groups of parameters have a learning rate and a decay of their own") {
  const auto results = on_ranks(2, [](World& world) {
    const auto moved = [&](const std::vector<ParameterGroup>& groups, float decay) {
      Run run(world, {}, sgd({.weight_decay = decay, .groups = groups}));
      const Arrays before = run.weights();
      run.step(1);
      Arrays after = run.weights();
      for (std::size_t i = 0; i < after.size(); ++i)
        for (std::size_t j = 0; j < after[i].size(); ++j) after[i][j] -= before[i][j];
      return after;
    };
    return std::array{moved({}, 0), moved({{"*.bias", 0}, {"layer1.*", 2}}, 0), moved({{"head", 1, 0.0f}}, 0.5f),
                      moved({{"*.bias", 1, 0.5f}}, 0)};
  });
  // head, layer0.weight, layer0.bias, layer1.weight, layer1.bias ...
  for (const auto& [plain, scaled, decayed, biased] : results) {
    for (std::size_t j = 0; j < kChainWidth; ++j) {
      CHECK(scaled[2][j] == 0);
      CHECK(scaled[4][j] == 0);  // the first group that matches
      CHECK(biased[2][j] == Approx(plain[2][j] - 0.02f * 0.5f * 0.125f).margin(1e-7));
    }
    for (std::size_t j = 0; j < plain[0].size(); ++j) {
      CHECK(scaled[1][j] == plain[1][j]);
      CHECK(scaled[3][j] == Approx(2 * plain[3][j]).margin(1e-6));
      CHECK(decayed[0][j] == plain[0][j]);
    }
    CHECK(decayed[1] != plain[1]);
  }
}

TEST_CASE("wrong options of an optimizer are errors that name them, on ranks that differ too") {
  const auto world = make_single_world({.timeout_s = 60});
  const auto problem = [&](const Make& make) { return message_of([&] { Run run(*world, {}, make); }); };
  CHECK_THAT(problem(sgd({.momentum = 1})), Contains("Sgd: a momentum of 1"));
  CHECK_THAT(problem(sgd({.nesterov = true})), Contains("nesterov without a momentum"));
  CHECK_THAT(problem(maker_of<Lion>(LionConfig{.beta2 = 1})), Contains("Lion: a beta of 1"));
  CHECK_THAT(problem(own({{"block*", 1}})), Contains("Own: no parameter is of the group \"block*\""));
  CHECK_THAT(problem(own({{"*", 1}, {"head", 2}})), Contains("no parameter is of the group \"head\""));
  CHECK_THAT(problem(own({{"head", -1}})), Contains("a scale of learning rates of -1"));
  CHECK_THAT(message_of([&] {
               Run run(*world, {}, [](Executor& executor) { return std::make_unique<NoUpdate>(executor); });
               run.step(1);
             }),
             Contains("Own does not say what becomes of a slice"));
  const auto messages = on_ranks(2, [](World& two) {
    return message_of([&] {
      Run run(two, {}, sgd({.momentum = two.rank() == 0 ? 0.9f : 0.8f}));
      run.step(1);
      run.device->synchronize();
    });
  });
  for (const std::string& message : messages)
    CHECK_THAT(message, Contains("the ranks disagree on the Sgd's momentum in step 1: rank 0 has 0.9, rank 1 has 0.8"));
}

}  // namespace zs::test::optimizer_test
