// Optimizers behind one interface: what they share, and one of a user's own.
#include "runtime/shard/optimizer.h"

#include <catch2/catch.hpp>

#include <cmath>

#include "runtime/shard/checkpoint.h"
#include "runtime/shard/sgd.h"
#include "runtime/tensor/host_view.h"
#include "tests/message_of.h"
#include "tests/model/temp_dir.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/scheme_cases.h"

namespace zs::test {
namespace {

using Catch::Contains;
using Arrays = std::vector<std::vector<float>>;

/// Chen et al. 2023: w -= lr (sign(b1 m + (1 - b1) g) + decay w), m = b2 m + (1 - b2) g.
struct Lion : Optimizer {
  explicit Lion(Executor& executor, std::vector<ParameterGroup> groups = {})
      : Optimizer(executor, {.name = "Lion", .state = {"m"}},
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

using Make = std::function<std::unique_ptr<Optimizer>(Executor&)>;
Make sgd(const SgdConfig& config) {
  return [config](Executor& executor) { return std::make_unique<Sgd>(executor, config); };
}
Make lion(const std::vector<ParameterGroup>& groups = {}) {
  return [groups](Executor& executor) { return std::make_unique<Lion>(executor, groups); };
}

struct Run {
  Run(World& of, const SchemeOptions& scheme, const Make& make, DType param = DType::f32,
      const LayoutOptions& layout = {})
      : world(of),
        dtype(param),
        device(Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60})),
        context(*device),
        runtime(context, of, options_of(scheme, param, layout)) {
    shard_module(model, runtime, Units::block);
    optimizer = make(runtime.executor());
  }
  static ShardOptions options_of(SchemeOptions scheme, DType param, const LayoutOptions& layout) {
    scheme.deterministic = true;
    return in_tests({.scheme = scheme, .precision = {.param = param}, .layout = layout, .seed = 3});
  }
  /// So many samples, whatever the ranks.
  void accumulate(int step) {
    const int each = samples / world.size();
    for (int i = 0; i < each; ++i) {
      runtime.begin_micro_batch(Mode::train, i + 1 == each);
      backward(model.loss(chain_input(context, step * samples + i * world.size() + world.rank(), dtype),
                          chain_targets(context)),
               1.0f / static_cast<float>(each));
      runtime.end_micro_batch();
    }
  }
  void step(int number) {
    accumulate(number);
    optimizer->step(0.02f, number);
  }
  Arrays weights() {
    Arrays all;
    for (int unit = 0; unit < runtime.scheduler().size(); ++unit) {
      runtime.executor().read_full(unit, [&](const Parameter& parameter, const float* values) {
        all.emplace_back(values, values + parameter.numel());
      });
    }
    return all;
  }

  World& world;
  DType dtype;
  int samples = 4;
  std::unique_ptr<Device> device;
  Context context;
  Chain model;
  ShardedRuntime runtime;
  std::unique_ptr<Optimizer> optimizer;
};

Arrays train(World& world, const SchemeOptions& scheme, const Make& make, DType param = DType::f32) {
  Run run(world, scheme, make, param);
  for (int step = 1; step <= 3; ++step) run.step(step);
  return run.weights();
}

/// An element and its state, in double precision.
struct Element {
  double w, m, v;
};
using Rule = std::function<void(Element& element, double grad, bool has_decay, int step)>;

/// Of every parameter, by the formula in double precision, from the gradients of one rank.
Arrays by_formula(const Make& make, const Rule& rule, int steps, int samples) {
  const auto world = make_single_world({.timeout_s = 60});
  Run run(*world, {}, make);
  run.samples = samples;
  std::vector<std::vector<Element>> expected;
  for (const auto& values : run.weights()) {
    expected.emplace_back();
    for (const float value : values) expected.back().push_back({static_cast<double>(value), 0, 0});
  }
  for (int step = 1; step <= steps; ++step) {
    run.accumulate(step);
    run.runtime.executor().wait_reductions();
    run.device->synchronize();
    std::size_t parameter = 0;
    for (const FlatParameter& unit : run.runtime.executor().units()) {
      for (const FlatView& view : unit.layout->views()) {
        const float* const grad = unit.grad_buffer().slice(view.offset, view.numel).as<float>();
        for (std::int64_t i = 0; i < view.numel; ++i)
          rule(expected[parameter][static_cast<std::size_t>(i)], static_cast<double>(grad[i]), view.has_decay, step);
        ++parameter;
      }
    }
    run.optimizer->step(0.02f, step);
  }
  Arrays rounded;
  for (const auto& values : expected) {
    rounded.emplace_back();
    for (const Element& element : values) rounded.back().push_back(static_cast<float>(element.w));
  }
  return rounded;
}

constexpr double kLr = 0.02;

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

}  // namespace

TEST_CASE("SGD follows its formula, and trains to the same bits in every scheme, at any number of ranks") {
  const SgdConfig config =
      GENERATE(SgdConfig{.order_free = true}, SgdConfig{.momentum = 0.9f, .weight_decay = 0.1f, .order_free = true},
               SgdConfig{.momentum = 0.5f, .nesterov = true, .weight_decay = 0.01f, .order_free = true});
  const Arrays formula = by_formula(sgd(config), rule_of(config), 3, 4),
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
    "20 steps of AdamW and SGD are those of plain arithmetic, in every strategy and layout, at 1, 2 and 3 ranks") {
  constexpr int kSteps = 20, kSamples = 6;
  constexpr double kTolerance = 1e-4;  // f32 states, over 20 steps
  const AdamWConfig adamw{.eps = 1e-4f, .clip = 0, .order_free = true};
  const SgdConfig momentum{.momentum = 0.9f, .weight_decay = 0.1f, .order_free = true};
  const bool is_adamw = GENERATE(true, false);
  const Make make =
      is_adamw ? Make([&](Executor& executor) { return std::make_unique<AdamW>(executor, adamw); }) : sgd(momentum);
  const Arrays expected = by_formula(make, is_adamw ? rule_of(adamw) : rule_of(momentum), kSteps, kSamples);
  for (const std::string name : {"ddp", "zero1", "zero2", "zero3", "shard_grad_op", "hsdp", "nested"}) {
    for (const LayoutOptions& layout :
         {LayoutOptions{}, LayoutOptions{.layout = Layout::per_parameter, .min_shard_bytes = 100}}) {
      for (const int ranks : {1, 2, 3}) {
        CAPTURE(is_adamw, name, name_of(layout.layout), ranks);
        const Arrays trained = on_ranks(ranks, [&](World& world) {
          Run run(world, scheme_of(name, ranks), make, DType::f32, layout);
          run.samples = kSamples;
          for (int step = 1; step <= kSteps; ++step) run.step(step);
          return run.weights();
        })[static_cast<std::size_t>(ranks) - 1];
        double most = 0;
        for (std::size_t i = 0; i < expected.size(); ++i)
          for (std::size_t j = 0; j < expected[i].size(); ++j)
            most = std::max(most, std::abs(static_cast<double>(trained[i][j]) - static_cast<double>(expected[i][j])));
        CHECK(most < kTolerance);
      }
    }
  }
}

TEST_CASE("an optimizer of one's own trains to the same bits in every scheme, in bf16 too") {
  const DType param = GENERATE(DType::f32, DType::bf16);
  const Arrays one = on_ranks(1, [&](World& world) { return train(world, {}, lion(), param); })[0];
  for (const std::string& name : scheme_names()) {
    CAPTURE(name, name_of(param));
    CHECK(on_ranks(4, [&](World& world) { return train(world, scheme_of(name, 4), lion(), param); })[3] == one);
  }
}

TEST_CASE("I2: the state of any optimizer is saved by name, and goes on at another number of ranks") {
  const Make make =
      GENERATE(lion(), sgd({.momentum = 0.9f, .clip = 0.5f, .order_free = true}), sgd({.order_free = true}));
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

TEST_CASE("a checkpoint of another optimizer is refused, with what is missing") {
  const TempDir folder;
  const auto world = make_single_world({.timeout_s = 60});
  Run lions(*world, {}, lion());
  save({*world, lions.runtime.executor(), *lions.optimizer}, folder.path(), {.step = 0, .attributes = {}});
  Run other(*world, {}, sgd({.momentum = 0.9f}));
  CHECK_THAT(message_of([&] {
               load({*world, other.runtime.executor(), *other.optimizer}, folder.path() + "/step-0");
             }),
             Contains("another optimizer: lion.m, here sgd.momentum"));
  Run plain(*world, {}, sgd({}));
  CHECK_THAT(message_of([&] {
               load({*world, plain.runtime.executor(), *plain.optimizer}, folder.path() + "/step-0");
             }),
             Contains("another optimizer: lion.m, here none"));
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
  CHECK_THAT(problem(lion({{"block*", 1}})), Contains("Lion: no parameter is of the group \"block*\""));
  CHECK_THAT(problem(lion({{"*", 1}, {"head", 2}})), Contains("no parameter is of the group \"head\""));
  CHECK_THAT(problem(lion({{"head", -1}})), Contains("a learning rate times -1"));
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

}  // namespace zs::test
