// Layers of mixtures of experts, against a plain loop in double precision, over ranks and where they are recomputed.
#include "model/nn/experts.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>

#include "model/nn/transformer.h"
#include "model/sharding/fully_shard.h"
#include "runtime/shard/runtime/unshard_scope.h"
#include "tests/message_of.h"
#include "tests/shard/chain_model.h"
#include "tests/skip.h"
#include "tests/tensor/gradient_check.h"

namespace zs::test::experts_test {
namespace {

using Weights = std::map<std::string, Values>;
using Ids = std::vector<std::int32_t>;

constexpr std::int64_t kVocab = 11, kWidth = 6, kExperts = 4, kHidden = 3, kShared = 5, kTime = 9, kChosen = 2;

MixtureOptions mixture_options(float balance_loss, float z_loss) {
  return {.router = {.width = kWidth,
                     .experts = kExperts,
                     .route = {.chosen = kChosen},
                     .balance_loss = balance_loss,
                     .z_loss = z_loss},
          .experts = {.width = kWidth, .hidden = kHidden, .experts = kExperts},
          .shared_hidden = kShared,
          .has_shared_gate = true};
}

TransformerOptions net_options(const MixtureOptions& mixture, std::int64_t layers) {
  return {.vocab = kVocab,
          .layers = layers,
          .positions = 0,
          .is_tied = false,
          .block = {.norm = NormKind::rms,
                    .attention = {.width = kWidth, .heads = 2, .has_bias = false},
                    .mlp = {.width = kWidth, .hidden = kHidden},
                    .mixture = mixture}};
}

/// Tokens' embeddings and what a mixture adds to them, before a head.
struct Net : LanguageModel {
  explicit Net(const MixtureOptions& options)
      : LanguageModel(kVocab),
        embedding(make_child<Embedding>("embedding", kVocab, kWidth)),
        mixture(make_child<Mixture>("mixture", options)),
        out(make_child<Linear>("head", kWidth, padded_vocab(kVocab), LinearOptions{.has_bias = false})) {}
  Tensor hidden(const Tensor& ids) override {
    const Tensor x = embedding(ids);
    return add(x, mixture(x));
  }
  Parameter& head() override { return out.weight(); }
  Module& head_module() override { return out; }

  Embedding& embedding;
  Mixture& mixture;
  Linear& out;
};

Ids ids_of(int micro_batch) { return random_ids(kTime, kVocab, 40 + static_cast<std::uint64_t>(micro_batch)); }
Ids targets_of(int micro_batch) { return random_ids(kTime, kVocab, 80 + static_cast<std::uint64_t>(micro_batch)); }

Values part(const Values& all, std::size_t index, std::size_t length) {
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(index * length);
  return {begin, begin + static_cast<std::ptrdiff_t>(length)};
}

/// What a router makes of one token: probabilities, whom it chooses, and the squared log-sum-exp.
struct Choice {
  Values probabilities;
  std::vector<std::size_t> chosen = {};
  double squared = 0;
};

Choice choose(const Values& x, const Weights& w) {
  Choice c{.probabilities = ref::linear(x, w.at("mixture.router.weight"), nullptr, kWidth)};
  double sum = 0;
  for (double& p : c.probabilities) sum += p = std::exp(p);
  for (double& p : c.probabilities) p /= sum;
  c.squared = std::log(sum) * std::log(sum);
  c.chosen.resize(kExperts);
  std::iota(c.chosen.begin(), c.chosen.end(), std::size_t{0});
  std::stable_sort(c.chosen.begin(), c.chosen.end(),
                   [&](auto a, auto b) { return c.probabilities[a] > c.probabilities[b]; });
  c.chosen.resize(kChosen);
  return c;
}

/// One token after the other, and each through its experts and the one that all share.
Values dense_mixture(const Values& x, const Choice& choice, const Weights& w) {
  double of_chosen = 0;
  for (const std::size_t e : choice.chosen) of_chosen += choice.probabilities[e];
  Values sum(kWidth);
  for (const std::size_t e : choice.chosen) {
    const Values up = ref::linear(x, part(w.at("mixture.experts.gate_up"), e, 2 * kHidden * kWidth), nullptr, kWidth);
    const Values down = ref::linear(ref::swiglu(up, 2 * kHidden),
                                    part(w.at("mixture.experts.down"), e, kWidth * kHidden), nullptr, kHidden);
    for (std::size_t i = 0; i < kWidth; ++i) sum[i] += choice.probabilities[e] / of_chosen * down[i];
  }
  const Values up = ref::linear(x, w.at("mixture.shared.gate_up.weight"), nullptr, kWidth);
  const Values shared = ref::linear(ref::swiglu(up, 2 * kShared), w.at("mixture.shared.down.weight"), nullptr, kShared);
  const double gate = ref::linear(x, w.at("mixture.shared_gate.weight"), nullptr, kWidth)[0];
  for (std::size_t i = 0; i < kWidth; ++i) sum[i] += shared[i] / (1 + std::exp(-gate));
  return sum;
}

struct Losses {
  double of_tokens = 0, squared = 0;
  Values probabilities = Values(kExperts), shares = Values(kExperts);
};

Losses losses_of(int micro_batch, const Weights& w) {
  Losses all;
  Values out;
  for (const std::int32_t id : ids_of(micro_batch)) {
    const Values x = part(w.at("embedding.weight"), static_cast<std::size_t>(id), kWidth);
    const Choice choice = choose(x, w);
    for (std::size_t e = 0; e < kExperts; ++e) all.probabilities[e] += choice.probabilities[e] / kTime;
    for (const std::size_t e : choice.chosen) all.shares[e] += 1.0 / (kTime * kChosen);
    all.squared += choice.squared / kTime;
    const Values y = ref::add(x, dense_mixture(x, choice, w));
    out.insert(out.end(), y.begin(), y.end());
  }
  all.of_tokens = ref::lm_head_loss(out, w.at("head.weight"), targets_of(micro_batch), kVocab);
  return all;
}

/// What a step minimises: the mean of what its micro-batches have, `together` of which run at once and are balanced as
/// one; and, of that, the loss that is told.
struct Minimised {
  double all = 0, of_tokens = 0;
};

Minimised loss_of_step(const Weights& w, int micro_batches, int together, float balance_loss, float z_loss) {
  double sum = 0, of_tokens = 0;
  for (int first = 0; first < micro_batches; first += together) {
    std::vector<Losses> all;
    for (int i = first; i < std::min(first + together, micro_batches); ++i) all.push_back(losses_of(i, w));
    for (const Losses& own : all) {
      of_tokens += own.of_tokens;
      sum += own.of_tokens + static_cast<double>(z_loss) * own.squared;
      for (std::size_t e = 0; e < kExperts; ++e) {
        double share = 0;
        for (const Losses& other : all) share += other.shares[e] / static_cast<double>(all.size());
        sum += static_cast<double>(balance_loss) * kExperts * share * own.probabilities[e];
      }
    }
  }
  return {sum / micro_batches, of_tokens / micro_batches};
}

struct Step {
  Weights weights = {}, gradients = {};
  double loss = 0;  // share of this rank's micro-batches
  std::vector<std::string> units = {};
};

Values values_of(Context& context, const Buffer& buffer) {
  context.stream().synchronize();
  return {buffer.as<float>(), buffer.as<float>() + buffer.elems};
}

void make_large(ShardedModel& model, Context& context) {
  const UnshardScope scope(model.runtime(), std::vector{0, 1});
  for (int unit = 0; unit < 2; ++unit)
    for (const Parameter* parameter : model.executor().units()[static_cast<std::size_t>(unit)].parameters) {
      const auto values = to_floats(normal(parameter->shape(), parameter->name().c_str(), 0.6).values);
      context.launch({"fill", {}, {scope.value(*parameter)}}, [out = scope.value(*parameter), values](ExecContext&) {
        std::copy(values.begin(), values.end(), out.as<float>());
      });
    }
}

/// A step of so many micro-batches, dealt out to the ranks in turn; a rank that is left over has one that counts for
/// nothing.
Step step_of(World& world, int micro_batches, const MixtureOptions& options, bool is_deterministic, bool has_seed) {
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Context context(*device);
  Net net(options);
  ShardedModel model =
      fully_shard(net, context, world,
                  {.shard = {.scheme = {.deterministic = is_deterministic}, .division = {Division::Rule::none}}});
  make_large(model, context);
  Step step{.units = model.runtime().names()};
  for (int first = 0; first < micro_batches; first += world.size()) {
    const int i = first + world.rank();
    const float seed = i < micro_batches ? 1.0f / static_cast<float>(micro_batches) : 0.0f;
    auto micro_batch = model.micro_batch({.last = first + world.size() >= micro_batches});
    LossOptions of_loss;
    if (has_seed) of_loss.seed = seed;
    const Tensor loss = net.loss(Tensor::from_host(context, {1, kTime}, ids_of(i)),
                                 Tensor::from_host(context, {1, kTime}, targets_of(i)), of_loss);
    micro_batch.backward(loss, seed);
    step.loss += static_cast<double>(loss.to_host()[0] * seed);
  }
  const UnshardScope scope(model.runtime(), std::vector{0, 1}, {.writes_back = false, .with_gradients = true});
  for (int unit = 0; unit < 2; ++unit)
    for (const Parameter* parameter : model.executor().units()[static_cast<std::size_t>(unit)].parameters) {
      step.weights[parameter->name()] = values_of(context, scope.value(*parameter));
      step.gradients[parameter->name()] = values_of(context, scope.gradient(*parameter));
    }
  return step;
}

struct Trained {
  std::vector<float> losses, evaluated, records;
  Weights weights;
  bool operator==(const Trained&) const = default;
};

/// Three steps of six micro-batches, of a model whose second block alone is recomputed, or none.
Trained train(World& world, bool is_deterministic, Recompute recompute) {
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Context context(*device);
  Transformer net(net_options(mixture_options(0.3f, 0.02f), 2));
  net.set_recompute([=](const std::string& block) { return block == "blocks.1" ? recompute : Recompute::none; });
  ShardedModel model = fully_shard(
      net, context, world,
      {.shard = {.scheme = {.deterministic = is_deterministic}, .seed = 3, .division = {Division::Rule::none}}});
  AdamW optimizer(model.executor(), {});
  std::vector<Tensor> records;
  for (Router* router : net.routers()) {
    records.push_back(Tensor::zeros(context, {router->record_elems()}, DType::f32));
    router->record_into(records.back().buffer());
  }
  constexpr int kMicroBatches = 6;
  Trained trained;
  const auto loss_of = [&](int i) {
    return net.loss(Tensor::from_host(context, {1, kTime}, ids_of(i)),
                    Tensor::from_host(context, {1, kTime}, targets_of(i)));
  };
  for (int step = 0; step < 3; ++step) {
    for (int i = world.rank(); i < kMicroBatches; i += world.size()) {
      auto micro_batch = model.micro_batch({.last = i + world.size() >= kMicroBatches});
      const Tensor loss = loss_of(i);
      micro_batch.backward(loss, 1.0f / kMicroBatches);
      trained.losses.push_back(loss.to_host()[0]);
    }
    optimizer.step(1e-2f);
    const auto evaluation = model.evaluation();
    trained.evaluated.push_back(loss_of(0).to_host()[0]);
    const Tensor ids = Tensor::from_host(context, {1, kTime}, ids_of(0));
    trained.evaluated.push_back(net.loss_and_logits(ids, ids, 0, [](auto, const Tensor&) {}).to_host()[0]);
  }
  for (const Tensor& record : records)
    for (const float value : record.to_host()) trained.records.push_back(value);
  for (int unit = 0; unit < static_cast<int>(model.executor().units().size()); ++unit)
    model.executor().read_full(unit, [&](const Parameter& parameter, const float* values) {
      trained.weights[parameter.name()] = Values(values, values + parameter.numel());
    });
  return trained;
}

}  // namespace

TEST_CASE(
    "a mixture computes what a loop over tokens and experts does, and its losses are those of all ranks' tokens") {
  struct Case {
    float balance_loss, z_loss;
    bool is_deterministic, has_seed;
  };
  const auto [balance_loss, z_loss, is_deterministic, has_seed] =
      GENERATE(Case{0, 0, false, true}, Case{0.3f, 0.02f, false, false}, Case{0.3f, 0, false, true},
               Case{0.3f, 0.02f, true, true}, Case{0, 0.05f, false, true});
  const int ranks = GENERATE(1, 2, 3), rounds = GENERATE(1, 2);
  if (is_thinned_out()) return;
  const int micro_batches = rounds * ranks - (has_seed && rounds == 2 && ranks > 1 ? 1 : 0);
  CAPTURE(balance_loss, z_loss, is_deterministic, has_seed, ranks, micro_batches);
  const auto steps = on_ranks(ranks, [&](World& world) {
    return step_of(world, micro_batches, mixture_options(balance_loss, z_loss), is_deterministic, has_seed);
  });
  const Step& step = steps.front();
  // Which ranks' tokens are balanced together must not depend on the ranks where the bits must not.
  const int together = is_deterministic ? 1 : ranks;
  const auto loss = [&](const Weights& w) { return loss_of_step(w, micro_batches, together, balance_loss, z_loss); };
  CHECK(step.units == std::vector<std::string>{"root", "mixture.experts"});
  double mean = 0;
  for (const Step& own : steps) mean += own.loss;
  CHECK(mean == Approx(loss(step.weights).of_tokens).epsilon(2e-6));
  for (const auto& [name, gradient] : step.gradients) {
    constexpr double kEps = 1e-5;
    Weights w = step.weights;
    Values wanted;
    for (double& value : w.at(name)) {
      if (name == "embedding.weight" || name == "head.weight") break;  // other tests' matter
      value += kEps;
      const double above = loss(w).all;
      value -= 2 * kEps;
      wanted.push_back((above - loss(w).all) / (2 * kEps));
      value += kEps;
    }
    if (!wanted.empty()) check_close(name, to_floats(gradient), wanted, 1e-5);
  }
}

TEST_CASE("a deterministic training of mixtures has the same bits at any number of ranks, recomputed or not") {
  const Trained one = train(*make_single_world({}), true, Recompute::none);
  CHECK(one.weights.size() == 25);
  for (const int ranks : {1, 2, 3}) {
    for (const Recompute recompute : {Recompute::none, Recompute::attention, Recompute::block}) {
      CAPTURE(ranks, recompute);
      const auto all = on_ranks(ranks, [&](World& world) { return train(world, true, recompute); });
      for (std::size_t i = 0; i < one.losses.size(); ++i)
        CHECK(all[i % static_cast<std::size_t>(ranks)].losses[i / static_cast<std::size_t>(ranks)] == one.losses[i]);
      for (const Trained& trained : all) {
        CHECK(trained.evaluated == one.evaluated);
        CHECK(trained.weights == one.weights);
      }
    }
  }
}

TEST_CASE("a block that is computed again takes its router's shares and losses once") {
  const int ranks = GENERATE(1, 3);
  const auto run = [&](Recompute recompute) {
    return on_ranks(ranks, [&](World& world) { return train(world, false, recompute); });
  };
  const auto kept = run(Recompute::none);
  CHECK(run(Recompute::block) == kept);
  REQUIRE(kept[0].records.size() == 2 * (kExperts + 1));
  const double forwards = 3.0 * 6 / ranks;
  CHECK(std::accumulate(kept[0].records.begin(), kept[0].records.begin() + kExperts, 0.0) == Approx(forwards));
  CHECK(kept[0].records[kExperts] > 0.9 * forwards);
}

}  // namespace zs::test::experts_test
