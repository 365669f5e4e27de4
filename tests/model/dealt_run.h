#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/nn/transformer.h"
#include "model/sharding/fully_shard.h"
#include "runtime/shard/optimizers/grad_norm.h"
#include "runtime/shard/optimizers/sgd.h"
#include "tests/shard/chain_model.h"
#include "tests/tensor/gradient_check.h"

namespace zs::test::dealt {

using Weights = std::map<std::string, std::vector<float>>;

inline constexpr std::int64_t kVocab = 11, kWidth = 6, kExperts = 8, kHidden = 5, kTime = 9, kMicroBatches = 8;
inline constexpr int kLayers = 2, kRanks = 4;

/// Sizes of the axes: experts are dealt over ep ranks, those of each sharded over efsdp, in edp replicas.
struct Axes {
  int ep = 1, efsdp = 1, edp = 1;
};

/// Loads that the routers' biases bring about.
enum class Load : std::uint8_t { any, first_alone, first_two };

struct Job {
  int ranks = 1;
  Axes axes = {};
  Dispatcher dispatcher = Dispatcher::all_to_all;
  float balance_loss = 0;
  Load load = Load::any;
  Recompute recompute = Recompute::none;
  float power = 2;  // of the norm
  bool has_bias = false, is_frozen = false, is_bf16 = false, has_adapters = false;
  bool is_cut_on_second_dim = false;  // over efsdp
  bool has_mean = false;              // the runtime divides by the shares of data, instead of whoever calls backward
  Activation activation = Activation::swiglu;
};

inline TransformerOptions net_options(const Job& job) {
  const std::int64_t chosen = job.load == Load::first_alone ? 1 : 2;
  const MixtureOptions mixture{.router = {.width = kWidth,
                                          .experts = kExperts,
                                          .route = {.chosen = chosen},
                                          .has_bias = true,
                                          .balance_loss = job.balance_loss},
                               .experts = {.width = kWidth,
                                           .hidden = kHidden,
                                           .experts = kExperts,
                                           .activation = job.activation,
                                           .has_bias = job.has_bias}};
  return {.vocab = kVocab,
          .layers = kLayers,
          .positions = 0,
          .is_tied = false,
          .block = {.norm = NormKind::rms,
                    .attention = {.width = kWidth, .heads = 2, .has_bias = false},
                    .mlp = {.width = kWidth, .hidden = kHidden},
                    .mixture = mixture}};
}

/// Large enough that tokens choose different experts, and with biases that decide where the load asks for it.
inline void set_weights(Module& module, Load load) {
  for (const auto& parameter : module.own_parameters()) {
    if (parameter->name().ends_with("router.bias") && load != Load::any)
      parameter->set_init({.function = [](std::int64_t expert) { return expert < 2 ? 30.0f - 9.0f * expert : 0.0f; }});
    else if (parameter->shape().rank() == 2)
      parameter->set_init({.normal_std = 0.5f});
  }
  for (Module* child : module.children()) set_weights(*child, load);
}

inline FullyShardOptions sharding(const Job& job) {
  const Axes& axes = job.axes;
  const Division division{job.has_mean ? Division::Rule::mean : Division::Rule::none};
  FullyShardOptions options{.shard = in_tests({.seed = 3, .division = division})};
  if (job.is_cut_on_second_dim)
    options.shard.layout = {.layout = Layout::per_parameter, .dim = [](std::string_view name, const Shape& shape) {
                              return name.find(".experts.") != name.npos && shape.rank() == 2 ? 1 : 0;
                            }};
  if (job.is_bf16) options.shard.precision.param = DType::bf16;
  UnitPolicy policy{.scheme = SchemeOptions{.strategy = Strategy::hsdp, .group_size = axes.efsdp},
                    .is_frozen = job.is_frozen};
  if (axes.ep > 1) {
    options.shard.grid = {{.name = "data", .size = axes.efsdp * axes.edp}, {.name = "ep", .size = axes.ep}};
    policy.partition = {.axis = "ep", .dims = {{"*", 0}}};
  }
  options.policies = {{"*.experts", policy}};
  return options;
}

inline std::vector<Experts*> experts_of(Module& module) {
  std::vector<Experts*> found;
  if (auto* const experts = dynamic_cast<Experts*>(&module)) found.push_back(experts);
  for (Module* child : module.children())
    for (Experts* const experts : experts_of(*child)) found.push_back(experts);
  return found;
}

/// Gives the first product of all experts an adapter.
inline void adapt(Module& module) {
  if (auto* const block = dynamic_cast<TransformerBlock*>(&module))
    for (Experts* const experts : experts_of(*block))
      experts->add_adapter(false, block->make_adapters().add(
                                      "gates", {.in = kWidth, .rows = 2 * kHidden, .rank = 2, .experts = kExperts}));
  for (Module* child : module.children()) adapt(*child);
}

/// A rank's model. It does whatever its share of a step's micro-batches is.
class Run {
 public:
  Run(World& world, const Job& job)
      : device_(Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60})),
        context_(*device_),
        power_(job.power),
        has_mean_(job.has_mean),
        net_(net_options(job)),
        model_(shard(world, job)),
        optimizer_(model_.executor(), {.momentum = 0.5f}) {
    for (Router* router : net_.routers()) {
      records_.push_back(Tensor::zeros(context_, {router->record_elems()}, DType::f32));
      router->record_into(records_.back().buffer());
    }
  }

  Tensor loss_of(std::int64_t micro_batch) {
    const auto seed = static_cast<std::uint64_t>(micro_batch);
    return net_.loss(Tensor::from_host(context_, {1, kTime}, random_ids(kTime, kVocab, 40 + seed)),
                     Tensor::from_host(context_, {1, kTime}, random_ids(kTime, kVocab, 90 + seed)));
  }

  /// Mean losses and norms of so many steps, and last a loss without training.
  std::vector<double> train(int steps) {
    std::vector<double> seen;
    const DataShare share = model_.runtime().data_share();
    for (int step = 0; step < steps; ++step) {
      double sum = 0;
      for (std::int64_t i = 0; share.item(i) < kMicroBatches; ++i) {
        auto micro_batch = model_.micro_batch({.last = share.item(i + 1) >= kMicroBatches});
        const Tensor loss = loss_of(step + share.item(i));
        micro_batch.backward(loss, static_cast<float>(has_mean_ ? share.count : 1) / kMicroBatches);
        sum += static_cast<double>(loss.to_host()[0]) / kMicroBatches * share.count;
      }
      seen.push_back(model_.runtime().mean_over_ranks(sum));
      seen.push_back(clip_grad_norm(model_.executor(), 0.4f, {.power = power_}).to_host()[0]);
      optimizer_.step(0.5f);
    }
    const auto evaluation = model_.evaluation();
    seen.push_back(model_.runtime().mean_over_ranks(loss_of(0).to_host()[0]));
    return seen;
  }

  /// Largest difference between this rank's parameters and its parts of `whole`; of frozen ones none.
  double distance(const Weights& whole) {
    double most = 0;
    for (const auto& [name, own] : weights()) {
      const auto& [part, values] = own;
      const std::vector<float>& wanted = whole.at(name);
      const std::size_t first = static_cast<std::size_t>(part.index) * values.size();
      for (std::size_t i = 0; i < values.size(); ++i)
        most = std::max(most, std::abs(static_cast<double>(values[i]) - static_cast<double>(wanted.at(first + i))));
    }
    return most;
  }
  Weights whole_weights() {
    Weights whole;
    for (const auto& [name, own] : weights()) whole[name] = own.second;
    return whole;
  }
  std::vector<float> records() const {
    std::vector<float> all;
    for (const Tensor& record : records_)
      for (const float value : record.to_host()) all.push_back(value);
    return all;
  }
  std::int64_t row_bytes() {
    context_.stream().synchronize();
    std::int64_t bytes = 0;
    for (const Experts* experts : experts_of(net_)) bytes += experts->exchange()->row_traffic().sent_bytes();
    return bytes;
  }
  Transformer& net() { return net_; }
  ShardedModel& model() { return model_; }
  Context& context() { return context_; }

 private:
  ShardedModel shard(World& world, const Job& job) {
    set_weights(net_, job.load);
    net_.set_recompute([&](const std::string&) { return job.recompute; });
    for (Experts* const experts : experts_of(net_)) experts->dispatch_by(job.dispatcher);
    if (job.has_adapters) adapt(net_);
    return fully_shard(net_, context_, world, sharding(job));
  }
  std::map<std::string, std::pair<ParameterPart, std::vector<float>>> weights() {
    std::map<std::string, std::pair<ParameterPart, std::vector<float>>> found;
    for (int unit = 0; unit < std::ssize(model_.executor().units()); ++unit)
      model_.executor().read_full(unit, [&](const Parameter& parameter, const float* values) {
        found[parameter.name()] = {parameter.part(), {values, values + parameter.numel()}};
      });
    return found;
  }

  std::unique_ptr<Device> device_;
  Context context_;
  float power_;
  bool has_mean_;
  Transformer net_;
  ShardedModel model_;
  Sgd optimizer_;
  std::vector<Tensor> records_;
};

inline const Dispatcher kBoth[] = {Dispatcher::all_to_all, Dispatcher::all_gather};

}  // namespace zs::test::dealt
