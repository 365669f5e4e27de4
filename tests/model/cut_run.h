#pragma once

#include <cmath>
#include <functional>

#include "model/nn/transformer.h"
#include "model/sharding/fully_shard.h"
#include "runtime/shard/optimizers/grad_norm.h"
#include "runtime/shard/optimizers/sgd.h"
#include "runtime/shard/placement/partition.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/named_weights.h"
#include "tests/tensor/gradient_check.h"

/// Transformers whose parameters are cut over ranks that read the same samples.
namespace zs::test::cut_run {

constexpr std::int64_t kVocab = 11, kWidth = 8, kHeads = 4, kHidden = 12, kTime = 5;
constexpr int kMicroBatches = 4;

using Dims = std::vector<std::pair<std::string, int>>;
inline const Dims kMlp{{"*.mlp.up.*", 0}, {"*.mlp.down.weight", 1}};

struct Job {
  int data = 1, tensor = 1;
  ShardOptions options = {};
  Recompute recompute = Recompute::none;
  Dims dims = kMlp, root = {};  ///< of blocks, and of what is in none
  float rate = 0.5f;
  std::function<void(BlockOptions&)> change = {};  ///< of a block of GPT-2
  std::function<bool(const Parameter&)> freezes = {};
  std::int64_t vocab = kVocab;
  bool is_tied = true, has_documents = false;
  float norm_power = 2;
};

inline TransformerOptions net_options(const Job& job) {
  TransformerOptions options{
      .vocab = job.vocab,
      .layers = 2,
      .positions = kTime,
      .is_tied = job.is_tied,
      .block = {.attention = {.width = kWidth, .heads = kHeads}, .mlp = {.width = kWidth, .hidden = kHidden}}};
  if (job.change) job.change(options.block);
  return options;
}

inline void set_weights(Module& module, const Job& job) {
  for (const auto& parameter : module.own_parameters()) {
    if (job.freezes && job.freezes(*parameter)) parameter->set_trainable(false);
    if (parameter->shape().rank() == 2) parameter->set_init({.normal_std = 0.5f});
    if (parameter->name().ends_with(".bias")) parameter->set_init({.uniform_bound = 0.5f});
  }
  for (Module* child : module.children()) set_weights(*child, job);
}

/// A rank's model, which does whatever its share of a step's micro-batches is.
class Run {
 public:
  Run(World& world, const Job& job)
      : device_(Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60})),
        context_(*device_),
        net_(net_options(job)),
        model_(shard(world, job)),
        optimizer_(model_.executor(), {.momentum = 0.5f}),
        rate_(job.rate),
        norm_power_(job.norm_power),
        vocab_(job.vocab),
        has_documents_(job.has_documents) {}

  /// Losses and norms of the steps.
  std::vector<double> train(int steps) {
    std::vector<double> seen;
    const DataShare share = model_.runtime().data_share();
    for (int step = 1; step <= steps; ++step) {
      double sum = 0;
      for (std::int64_t i = 0; share.item(i) < kMicroBatches; ++i) {
        auto micro_batch = model_.micro_batch({.last = share.item(i + 1) >= kMicroBatches});
        const float seed = static_cast<float>(share.count) / kMicroBatches;
        const Tensor loss = loss_of(step + share.item(i), seed);
        micro_batch.backward(loss, seed);
        sum += static_cast<double>(loss.to_host()[0]) / kMicroBatches * share.count;
      }
      seen.push_back(model_.runtime().mean_over_ranks(sum));
      seen.push_back(clip_grad_norm(model_.executor(), 0.5f, {.power = norm_power_}).to_host()[0]);
      optimizer_.step(rate_);
    }
    return seen;
  }
  Weights weights() { return weights_of(model_.executor()); }
  /// Those that are whole along the axis.
  Weights whole_weights() {
    Weights found = weights();
    for (const FlatParameter& unit : model_.executor().units())
      for (const Parameter* parameter : unit.parameters)
        if (!parameter->part().is_whole()) found.erase(parameter->name());
    return found;
  }
  /// Largest difference between this rank's parameters and its parts of whole ones.
  double distance(const Weights& whole) {
    double most = 0;
    const Weights own = weights();
    for (const FlatParameter& unit : model_.executor().units())
      for (const Parameter* parameter : unit.parameters) {
        const ParameterPart& part = parameter->part();
        const TensorParts parts(part.whole_of(parameter->shape()), part);
        for (std::int64_t i = 0; i < parameter->numel(); ++i) {
          const double value = own.at(parameter->name())[static_cast<std::size_t>(i)];
          const auto at = static_cast<std::size_t>(parts.in_whole(part.index, i));
          most = std::max(most, std::abs(value - static_cast<double>(whole.at(parameter->name())[at])));
        }
      }
    return most;
  }
  /// Logits of what follows a sequence of tokens, as they are and from a cache; and of all its tokens.
  std::vector<std::vector<float>> logits() {
    const auto evaluation = model_.evaluation();
    const auto tokens = [this](std::int64_t first, std::int64_t count) {
      const std::vector<std::int32_t> all = random_ids(kTime, vocab_, 3);
      return Tensor::from_host(context_, {1, count},
                               std::vector<std::int32_t>(all.begin() + first, all.begin() + first + count));
    };
    std::vector<std::vector<float>> found{net_.next_token_logits(tokens(0, kTime), kTime - 1).to_host()};
    KvCache cache(kTime);
    net_.next_token_logits(tokens(0, 3), 2, &cache);
    found.push_back(net_.next_token_logits(tokens(3, kTime - 3), kTime - 4, &cache).to_host());
    found.emplace_back();
    net_.loss_and_logits(tokens(0, kTime), ids(4), 2, [&](std::int64_t, const Tensor& rows) {
      const std::vector<float> values = rows.to_host();
      found.back().insert(found.back().end(), values.begin(), values.end());
    });
    return found;
  }
  Executor& executor() { return model_.executor(); }
  /// A loss of tokens of this rank alone, where it is another one.
  void evaluate_other_tokens(bool is_other, bool are_targets) {
    const auto evaluation = model_.evaluation();
    net_.loss(ids(is_other && !are_targets ? 8 : 7), ids(is_other && are_targets ? 8 : 7)).to_host();
  }
  /// A loss of these numbers of tokens, one of which may be none.
  void evaluate_numbers(std::vector<std::int32_t> numbers, std::vector<std::int32_t> targets) {
    const auto evaluation = model_.evaluation();
    net_.loss(Tensor::from_host(context_, {1, kTime}, std::move(numbers)),
              Tensor::from_host(context_, {1, kTime}, std::move(targets)))
        .to_host();
  }
  void evaluate() {
    const auto evaluation = model_.evaluation();
    loss_of(1);
  }

 private:
  Tensor ids(std::uint64_t seed) { return Tensor::from_host(context_, {1, kTime}, random_ids(kTime, vocab_, seed)); }
  /// The loss; of odd samples with its gradient in forward.
  Tensor loss_of(std::int64_t sample, std::optional<float> seed = {}) {
    const auto number = static_cast<std::uint64_t>(sample);
    return net_.loss(ids(40 + number), ids(90 + number), {.seed = sample % 2 == 1 ? seed : std::nullopt, .chunk = 2},
                     has_documents_ ? Documents({2, 2, 1}) : Documents());
  }
  ShardedModel shard(World& world, const Job& job) {
    set_weights(net_, job);
    net_.set_recompute([&](const std::string&) { return job.recompute; });
    FullyShardOptions options{.shard = in_tests(job.options)};
    if (job.tensor > 1) {
      options.shard.grid = {{"data", job.data}, {"tensor", job.tensor, false}};
      options.policies = {{"blocks.*", {.partition = {"tensor", job.dims}}}};
      if (!job.root.empty()) options.policies.push_back({"root", {.partition = {"tensor", job.root}}});
    }
    return fully_shard(net_, context_, world, options);
  }

  std::unique_ptr<Device> device_;
  Context context_;
  Transformer net_;
  ShardedModel model_;
  Sgd optimizer_;  // AdamW would divide the gradient of keys' biases, which is rounding alone, by itself
  float rate_, norm_power_;
  std::int64_t vocab_;
  bool has_documents_;
};

struct Found {
  std::vector<double> seen;
  Weights weights, whole;  // of one rank; and those that are whole along the axis
  double begin = 0, end = 0;
};

inline std::vector<Found> run(const Job& job, const Found* whole = nullptr, const Weights* first = nullptr) {
  return on_ranks(job.data * job.tensor, [&](World& world) {
    Run own(world, job);
    Found found;
    if (first != nullptr) found.begin = own.distance(*first);
    found.seen = own.train(5);
    found.whole = own.whole_weights();
    whole != nullptr ? found.end = own.distance(whole->weights) : (found.weights = own.weights(), 0.0);
    return found;
  });
}

}  // namespace zs::test::cut_run
