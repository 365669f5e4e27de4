// Products that are cut over ranks which read the same samples, against one rank that has them whole.
#include <catch2/catch.hpp>
#include <cmath>

#include "model/nn/transformer.h"
#include "model/sharding/fully_shard.h"
#include "runtime/shard/optimizers/grad_norm.h"
#include "runtime/shard/optimizers/sgd.h"
#include "runtime/shard/placement/partition.h"
#include "tests/message_of.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/named_weights.h"
#include "tests/tensor/gradient_check.h"

namespace zs::test::cut_linear_test {
namespace {

constexpr std::int64_t kVocab = 11, kWidth = 6, kHidden = 12, kTime = 5;
constexpr int kMicroBatches = 4;

using Dims = std::vector<std::pair<std::string, int>>;
const Dims kMlp{{"*.mlp.up.*", 0}, {"*.mlp.down.weight", 1}};

struct Job {
  int data = 1, tensor = 1;
  ShardOptions options = {};
  Recompute recompute = Recompute::none;
  Activation activation = Activation::gelu_tanh;
  Dims dims = kMlp;
};

TransformerOptions net_options(const Job& job) {
  return {.vocab = kVocab,
          .layers = 2,
          .positions = kTime,
          .is_tied = true,
          .block = {.attention = {.width = kWidth, .heads = 2},
                    .mlp = {.width = kWidth, .hidden = kHidden, .activation = job.activation}}};
}

void set_weights(Module& module) {
  for (const auto& parameter : module.own_parameters()) {
    if (parameter->shape().rank() == 2) parameter->set_init({.normal_std = 0.5f});
    if (parameter->name().ends_with(".bias")) parameter->set_init({.uniform_bound = 0.5f});
  }
  for (Module* child : module.children()) set_weights(*child);
}

/// A product that is a unit.
struct Only : Layer<Only> {
  Only() : Layer("only") {}
  bool is_block() const override { return true; }
  Linear& up = make_child<Linear>("up", kChainWidth, kChainWidth);
  Tensor forward(const Tensor& x) { return up(x); }
};

/// A rank's model, which does whatever its share of a step's micro-batches is.
class Run {
 public:
  Run(World& world, const Job& job)
      : device_(Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60})),
        context_(*device_),
        net_(net_options(job)),
        model_(shard(world, job)),
        optimizer_(model_.executor(), {.momentum = 0.5f}) {}

  /// Losses and norms of the steps.
  std::vector<double> train(int steps) {
    std::vector<double> seen;
    const DataShare share = model_.runtime().data_share();
    for (int step = 1; step <= steps; ++step) {
      double sum = 0;
      for (std::int64_t i = 0; share.item(i) < kMicroBatches; ++i) {
        auto micro_batch = model_.micro_batch({.last = share.item(i + 1) >= kMicroBatches});
        const Tensor loss = loss_of(step + share.item(i));
        micro_batch.backward(loss, static_cast<float>(share.count) / kMicroBatches);
        sum += static_cast<double>(loss.to_host()[0]) / kMicroBatches * share.count;
      }
      seen.push_back(model_.runtime().mean_over_ranks(sum));
      seen.push_back(clip_grad_norm(model_.executor(), 0.5f).to_host()[0]);
      optimizer_.step(0.5f);
    }
    return seen;
  }
  Weights weights() { return weights_of(model_.executor()); }
  /// Largest difference between this rank's parameters and its parts of whole ones.
  double distance(const Weights& whole) {
    double most = 0;
    const Weights own = weights();
    for (const FlatParameter& unit : model_.executor().units())
      for (const Parameter* parameter : unit.parameters) {
        const ParameterPart& part = parameter->part();
        const TensorParts parts(part.whole_of(parameter->shape()), part.dim, part.count);
        for (std::int64_t i = 0; i < parameter->numel(); ++i) {
          const double value = own.at(parameter->name())[static_cast<std::size_t>(i)];
          const auto at = static_cast<std::size_t>(parts.in_whole(part.index, i));
          most = std::max(most, std::abs(value - static_cast<double>(whole.at(parameter->name())[at])));
        }
      }
    return most;
  }
  void evaluate() {
    const auto evaluation = model_.evaluation();
    loss_of(1);
  }

 private:
  Tensor loss_of(std::int64_t sample) {
    const auto seed = static_cast<std::uint64_t>(sample);
    return net_.loss(Tensor::from_host(context_, {1, kTime}, random_ids(kTime, kVocab, 40 + seed)),
                     Tensor::from_host(context_, {1, kTime}, random_ids(kTime, kVocab, 90 + seed)));
  }
  ShardedModel shard(World& world, const Job& job) {
    set_weights(net_);
    net_.set_recompute([&](const std::string&) { return job.recompute; });
    FullyShardOptions options{.shard = in_tests(job.options)};
    if (job.tensor > 1) {
      options.shard.grid = {{"data", job.data}, {"tensor", job.tensor, false}};
      options.policies = {{"blocks.*", {.partition = {"tensor", job.dims}}}};
    }
    return fully_shard(net_, context_, world, options);
  }

  std::unique_ptr<Device> device_;
  Context context_;
  Transformer net_;
  ShardedModel model_;
  Sgd optimizer_;  // AdamW would divide the gradient of keys' biases, which is rounding alone, by itself
};

struct Found {
  std::vector<double> seen;
  Weights weights;
  double begin = 0, end = 0;
};

std::vector<Found> run(const Job& job, const Found* whole = nullptr, const Weights* first = nullptr) {
  return on_ranks(job.data * job.tensor, [&](World& world) {
    Run own(world, job);
    Found found;
    if (first != nullptr) found.begin = own.distance(*first);
    found.seen = own.train(5);
    whole != nullptr ? found.end = own.distance(whole->weights) : (found.weights = own.weights(), 0.0);
    return found;
  });
}

}  // namespace

TEST_CASE("a hidden dim cut over ranks that read the same samples trains as one rank's") {
  const Weights first = on_ranks(1, [](World& world) { return Run(world, {.tensor = 1}).weights(); }).front();
  const Found alone = run({}).front();
  const ShardOptions by_parameter{.layout = {.layout = Layout::per_parameter}};
  const auto scheme = [](SchemeOptions options) { return ShardOptions{.scheme = options}; };
  const std::vector<Job> jobs{{.tensor = 2},
                              {.tensor = 4, .recompute = Recompute::block},
                              {.data = 2, .tensor = 2, .options = by_parameter},
                              {.data = 2, .tensor = 2, .options = scheme({.strategy = Strategy::zero1})},
                              {.data = 2, .tensor = 2, .options = scheme({.strategy = Strategy::zero2})},
                              {.data = 2, .tensor = 2, .options = scheme({.strategy = Strategy::ddp})},
                              {.data = 2,
                               .tensor = 2,
                               .options = scheme({.strategy = Strategy::hsdp, .group_size = 1}),
                               .recompute = Recompute::attention}};
  for (const Job& job : jobs)
    for (const Found& found : run(job, &alone, &first)) {
      CAPTURE(job.data, job.tensor, job.recompute, found.seen, alone.seen);
      CHECK(found.begin == 0);
      CHECK(found.end < 1e-5);
      REQUIRE(found.seen.size() == alone.seen.size());
      for (std::size_t i = 0; i < alone.seen.size(); ++i) CHECK(found.seen[i] == Approx(alone.seen[i]).epsilon(1e-5));
    }
}

TEST_CASE("products that are cut otherwise than they compute are usage errors") {
  const auto problem = [](Job job) {
    job.tensor = 2;
    return on_ranks(2, [&](World& world) { return message_of([&] { Run(world, job).evaluate(); }); }).front();
  };
  CHECK_THAT(problem({.dims = {{"*.mlp.up.weight", 0}, {"*.mlp.down.weight", 1}}}),
             Catch::Contains("\"blocks.0.mlp.up\" is cut over axis tensor, and its bias does not go with that"));
  CHECK_THAT(problem({.dims = {{"*.mlp.up.*", 0}, {"*.mlp.down.weight", 1}, {"*.mlp.down.bias", 0}}}),
             Catch::Contains("\"blocks.0.mlp.down\" is cut over axis tensor, and its bias does not go with that"));
  CHECK_THAT(problem({.activation = Activation::swiglu, .dims = {{"*.mlp.gate_up.*", 0}, {"*.mlp.down.weight", 1}}}),
             Catch::Contains("\"blocks.0.mlp.gate_up\" is cut on dim 0, across a gate's rows and the others"));
  CHECK_THAT(
      problem({.dims = {{"*.qkv.*", 0}}}),
      Catch::Contains("\"blocks.0.attention.qkv\" is cut on dim 0, across the rows of queries, keys and values"));
}

TEST_CASE("a product that is cut over ranks which read different data is a usage error") {
  const std::string problem = on_ranks(2, [](World& world) {
                                const auto device =
                                    Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
                                Context context(*device);
                                Only net;
                                FullyShardOptions options{.shard = in_tests({})};
                                options.shard.grid = {{"part", 2}};
                                options.policies = {{"*", {.partition = {"part", {{"*", 0}}}}}};
                                ShardedModel model = fully_shard(net, context, world, options);
                                return message_of([&] {
                                  const auto evaluation = model.evaluation();
                                  net(chain_input(context, 0));
                                });
                              }).front();
  CHECK_THAT(problem, Catch::Contains("is cut over axis part, whose ranks read different data"));
}

}  // namespace zs::test::cut_linear_test
