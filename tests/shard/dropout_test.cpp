// Dropout in training: whose random numbers it draws.
#include "model/nn/dropout.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <set>

#include "model/nn/attention.h"
#include "model/nn/linear.h"
#include "model/sharding/fully_shard.h"
#include "runtime/tensor/arithmetic.h"
#include "runtime/tensor/layout.h"
#include "runtime/tensor/pointwise.h"
#include "runtime/tensor/recompute.h"
#include "tests/message_of.h"
#include "tests/model/temp_dir.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/named_weights.h"
#include "tests/shard/tiny_training.h"

namespace zs::test::dropout_test {
namespace {

using Catch::Contains;
using Floats = std::vector<float>;

Config dropping_config() {
  Config config = tiny_config();
  config.train.global_batch = 6;
  config.model.dropout = 0.2;
  return config;
}

bool is_same_run(const TinyResult& a, const TinyResult& b) { return a.losses == b.losses && a.weights == b.weights; }

constexpr std::int64_t kRows = 4, kWidth = 32;

struct Net : Layer<Net> {
  explicit Net(float probability)
      : drop(make_child<Dropout>("drop", probability)), other(make_child<Dropout>("other", probability)) {}
  Tensor forward(const Tensor& x) { return linear(drop(x), weight, nullptr); }
  Dropout &drop, &other;
  Parameter& weight = add_parameter("weight", {3, kWidth}, {.normal_std = 0.5f}, true);
};

struct Rank {
  explicit Rank(World& world, float probability = 0.5f)
      : device(Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60})),
        context(*device),
        net(probability),
        model(fully_shard(net, context, world)) {}

  Tensor ones(std::int64_t rows = kRows) const {
    return Tensor::from_host(context, {rows, kWidth}, Floats(static_cast<std::size_t>(rows * kWidth), 1.0f));
  }
  /// What is dropped of ones in a micro-batch.
  Floats drop(const MicroBatchOptions& options = {}, std::uint64_t call = 0, std::int64_t rows = kRows) {
    auto micro_batch = model.micro_batch(options);
    const Tensor y = net.drop(ones(rows), call);
    sum(net(ones(rows))).backward();
    micro_batch.end();
    return y.to_host();
  }

  /// The first step comes again.
  void restart() {
    model.executor().wait_reductions();  // which no optimizer has waited for
    model.executor().clear_gradients();
    model.runtime().set_steps_done(0);
  }

  std::unique_ptr<Device> device;
  mutable Context context;
  Net net;
  ShardedModel model;
};

}  // namespace

TEST_CASE("dropout drops in training alone, as much as it should, others in each step, micro-batch, call and layer") {
  const auto world = make_single_world({});
  Rank rank(*world);
  const Floats first = rank.drop();
  const auto kept = std::count(first.begin(), first.end(), 2.0f);
  CHECK(std::count(first.begin(), first.end(), 0.0f) + kept == std::ssize(first));
  CHECK(std::abs(static_cast<double>(kept) / static_cast<double>(first.size()) - 0.5) < 0.2);
  const Floats second = rank.drop(), open = rank.drop({.last = false}), third = rank.drop();
  CHECK(second != first);
  CHECK(third != open);
  rank.restart();
  CHECK(rank.drop() == first);
  rank.restart();
  CHECK(rank.drop({}, 1) != first);
  rank.restart();
  auto micro_batch = rank.model.micro_batch();
  CHECK(rank.net.drop(rank.ones()).to_host() == first);
  CHECK(rank.net.other(rank.ones()).to_host() != first);
  sum(rank.net(rank.ones())).backward();
  micro_batch.end();
  auto evaluation = rank.model.evaluation();
  CHECK(rank.net.drop(rank.ones()).to_host() == rank.ones().to_host());
}

TEST_CASE("a sample is dropped alike on whichever rank it is, in a micro-batch of whichever size") {
  const auto world = make_single_world({});
  Rank rank(*world);
  const Floats whole = rank.drop({}, 0, 4 * kRows);
  const auto part = [&](int i) {
    const auto from = whole.begin() + i * kRows * kWidth;
    return Floats(from, from + kRows * kWidth);
  };
  rank.restart();
  for (int i = 0; i < 4; ++i) CHECK(rank.drop({.last = i == 3}) == part(i));
  const auto parts = on_ranks(2, [&](World& both) {
    Rank one(both);
    std::vector<Floats> parts{one.drop({.last = false}), one.drop()};
    one.restart();
    for (const int i : {1, 2})
      parts.push_back(one.drop({.last = i == 2, .first_sample = (2 * both.rank() + i - 1) * kRows}));
    return parts;
  });
  for (const int r : {0, 1}) {
    const auto& got = parts[static_cast<std::size_t>(r)];
    CHECK(got[0] == part(r));
    CHECK(got[1] == part(2 + r));
    CHECK(got[2] == part(2 * r));  // as it was told
    CHECK(got[3] == part(2 * r + 1));
  }
}

TEST_CASE("a step that is dropped, and a micro-batch that is abandoned, are dropped alike when they come again") {
  const auto world = make_single_world({});
  Rank rank(*world);
  const Floats first = rank.drop({.last = false}), second = rank.drop();
  rank.model.runtime().abandon_step();
  CHECK(rank.drop({.last = false}) == first);
  try {
    auto micro_batch = rank.model.micro_batch();
    rank.net.drop(rank.ones());
    throw std::runtime_error("seen by every rank");
  } catch (const std::runtime_error&) {
  }
  CHECK(rank.drop() == second);
}

TEST_CASE("attention with dropout is causal attention, but for what it drops") {
  const AttentionOptions options = GENERATE(
      AttentionOptions{.width = 24, .heads = 4},
      AttentionOptions{.width = 24, .heads = 4, .kv_heads = 2, .head_dim = 8, .window = 3, .rotary = RotaryOptions{}});
  const Documents documents = GENERATE(Documents(), Documents({3, 4, 2, 5}));
  struct One : Layer<One> {
    explicit One(const AttentionOptions& options) : attention(make_child<Attention>("attention", options)) {}
    Tensor forward(const Tensor& x, const Documents& documents) { return attention(x, documents); }
    Attention& attention;
  };
  const auto world = make_single_world({});
  const auto device = Device::create(DeviceKind::cpu, {});
  Context context(*device);
  Floats values(2 * 7 * 24);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i * i % 97));
  const auto run = [&](float probability) {
    AttentionOptions dropping = options;
    dropping.dropout = probability;
    One net(dropping);
    ShardedModel model = fully_shard(net, context, *world, {.shard = {.seed = 3}});
    auto micro_batch = model.micro_batch();
    Tensor x = Tensor::from_host(context, {2, 7, 24}, values);
    x.set_requires_grad();
    const Tensor y = net(x, documents);
    sum(y * y * y * 1e4f).backward();
    micro_batch.end();
    return std::pair(y.to_host(), x.grad().to_host());
  };
  const auto plain = run(0), nothing = run(1e-12f), half = run(0.5f);
  double largest = 0, error = 0, grad_error = 0, grad_largest = 0;
  for (std::size_t i = 0; i < plain.first.size(); ++i) {
    largest = std::max<double>(largest, std::abs(plain.first[i]));
    error = std::max<double>(error, std::abs(plain.first[i] - nothing.first[i]));
    grad_largest = std::max<double>(grad_largest, std::abs(plain.second[i]));
    grad_error = std::max<double>(grad_error, std::abs(plain.second[i] - nothing.second[i]));
  }
  CHECK(error < 2e-6 * largest);
  CHECK(grad_error < 5e-6 * grad_largest);
  CHECK(nothing.first != plain.first);  // else these are not the ops in question
  CHECK(half.first != plain.first);
}

TEST_CASE("a GPT-2 with dropout is trained to the same bits at any number of ranks, and when it recomputes") {
  static const TinyResult one = train_tiny(dropping_config(), {.is_calm = true});
  const int variant = GENERATE(range(0, 6));
  Config config = dropping_config();
  if (variant == 2) config.train.recompute = {"attention"};
  if (variant == 3) config.train.recompute = {"block"};
  if (variant >= 4) config.model.dropout = 0;
  if (variant == 4)
    config.model.embedding_dropout = config.model.residual_dropout = config.model.attention_dropout = 0.2;
  CAPTURE(variant);
  const TinyResult other = train_tiny(config, {.ranks = variant == 0 ? 3 : variant == 1 ? 2 : 1});
  CHECK(is_same_run(other, one) == (variant != 5));
}

TEST_CASE("each part of a GPT-2's dropout does something of its own") {
  Config config = dropping_config();
  std::vector<std::string> weights;
  for (int part = 0; part < 4; ++part) {
    config.model.dropout = 0;
    config.model.embedding_dropout = part == 1 ? 0.2 : -1;
    config.model.attention_dropout = part == 2 ? 0.2 : -1;
    config.model.residual_dropout = part == 3 ? 0.2 : -1;
    weights.push_back(train_tiny(config, {.steps = 1, .is_calm = true}).weights);
  }
  std::sort(weights.begin(), weights.end());
  CHECK(std::adjacent_find(weights.begin(), weights.end()) == weights.end());
}

TEST_CASE("dropout goes on from a checkpoint with the random numbers of the steps that follow") {
  const TempDir folder;
  const Config config = dropping_config();
  const TinyResult whole = train_tiny(config, {.steps = 3, .is_calm = true, .checkpoints = folder.path()});
  const TinyResult rest =
      train_tiny(config, {.ranks = 2, .steps = 3, .is_calm = true, .resume = fmt::format("{}/step-2", folder.path())});
  CHECK(rest.weights == whole.weights);
}

TEST_CASE("an adapter drops elements of its own input, and none in an evaluation; its magnitudes are of what is left") {
  constexpr static std::int64_t kOutputs = 5;
  struct AdaptedNet : Layer<AdaptedNet> {
    explicit AdaptedNet(bool has_magnitude)
        : adapter(make_child<LoraAdapter>("adapter", LoraOptions{.in = kWidth,
                                                                 .rows = 3,
                                                                 .rank = 2,
                                                                 .first_row = 1,
                                                                 .scale = 1.5f,
                                                                 .dropout = 0.25f,
                                                                 .has_magnitude = has_magnitude})) {
      product.add_adapter(adapter);
      for (const auto& parameter : product.own_parameters()) {
        parameter->set_init({.normal_std = 0.5f});
        parameter->set_trainable(false);
      }
    }
    Tensor forward(const Tensor& x) { return product(x); }
    Linear& product = make_child<Linear>("product", kWidth, kOutputs);
    LoraAdapter& adapter;
  };
  const bool has_magnitude = GENERATE(false, true);
  const auto world = make_single_world({});
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Context context(*device);
  AdaptedNet net(has_magnitude);
  ShardedModel model = fully_shard(net, context, *world);
  AdamW optimizer(model.executor(), {});
  const Tensor ones =
      Tensor::from_host(context, {kRows, kWidth}, Floats(static_cast<std::size_t>(kRows * kWidth), 1.0f));
  model.micro_batch().backward(sum(square(net(ones))));
  optimizer.step(1e-1f);  // which makes B what is not zero
  const auto weights = weights_of(model.executor());
  const Floats &a = weights.at("adapter.lora_A.weight"), &b = weights.at("adapter.lora_B.weight"),
               &w = weights.at("product.weight"), &bias = weights.at("product.bias");
  const auto at = [](const Floats& values, std::int64_t row, std::int64_t columns, std::int64_t column) {
    return static_cast<double>(values[static_cast<std::size_t>(row * columns + column)]);
  };
  const auto change_at = [&](std::int64_t out, std::int64_t i) {
    return 1.5 * (at(b, out - 1, 2, 0) * at(a, 0, kWidth, i) + at(b, out - 1, 2, 1) * at(a, 1, kWidth, i));
  };
  const auto wanted = [&](const Floats& x, std::int64_t row, std::int64_t out) {
    double whole = at(bias, 0, 0, out), base = 0, change = 0, squares = 0;
    const bool is_adapted = out >= 1 && out < 4;
    for (std::int64_t i = 0; i < kWidth; ++i) {
      whole += at(w, out, kWidth, i);
      base += at(w, out, kWidth, i) * at(x, row, kWidth, i);
      if (!is_adapted) continue;
      change += change_at(out, i) * at(x, row, kWidth, i);
      squares += std::pow(at(w, out, kWidth, i) + change_at(out, i), 2);
    }
    if (!is_adapted) return whole;
    const double factor =
        has_magnitude ? at(weights.at("adapter.lora_magnitude_vector"), 0, 0, out - 1) / std::sqrt(squares) : 1;
    return whole + (factor - 1) * base + factor * change;
  };
  const auto check = [&](const Floats& got, const Floats& x) {
    for (std::int64_t row = 0; row < kRows; ++row)
      for (std::int64_t out = 0; out < kOutputs; ++out)
        CHECK(at(got, row, kOutputs, out) == Approx(wanted(x, row, out)).margin(1e-5));
  };
  {
    auto micro_batch = model.micro_batch();
    const Tensor y = net(ones);
    const Floats kept = dynamic_cast<Dropout&>(*net.adapter.children().front())(ones).to_host();
    CHECK(std::set<float>(kept.begin(), kept.end()) == std::set<float>{0, 1 / 0.75f});
    check(y.to_host(), kept);
    micro_batch.backward(sum(y));
  }
  const auto evaluation = model.evaluation();
  check(net(ones).to_host(), ones.to_host());
}

TEST_CASE("a wrong use of dropout is refused, and says what to do") {
  CHECK_THAT(message_of([] { Dropout("a.drop", 1); }), Contains("\"a.drop\": probability 1"));
  CHECK_THAT(message_of([] { Dropout("a.drop", -0.5f); }), Contains("at least 0"));
  const auto world = make_single_world({});
  Rank rank(*world);
  CHECK_THAT(message_of([&] { rank.net.drop(rank.ones()); }), Contains("no micro-batch is running"));
  CHECK_THAT(message_of([&] { const auto refused = rank.model.micro_batch({.first_sample = -1}); }),
             Contains("first sample is -1"));
  Dropout alone("alone", 0.5f);
  CHECK_THAT(message_of([&] { alone(rank.ones()); }), Contains("\"alone\" is called outside of a sharded model"));
  CHECK_THAT(message_of([&] { rank.model.runtime().set_steps_done(-1); }), Contains("0 or more"));
}

}  // namespace zs::test::dropout_test
