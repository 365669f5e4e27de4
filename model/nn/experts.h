#pragma once

#include <memory>
#include <vector>

#include "model/nn/lora.h"
#include "model/nn/mlp.h"
#include "runtime/shard/experts/expert_exchange.h"
#include "runtime/tensor/experts.h"

namespace zs {

struct Placement;

/// Pass of a model's routers: what they share in one forward that is trained on.
struct RouterPass {
  Tensor seed;         ///< f32 scalar, d loss / d loss of the model's; there when backward begins
  bool counts = true;  ///< false: the tokens stand for none, and nothing is learnt from them
};

/// Options of Router.
struct RouterOptions {
  std::int64_t width = 0, experts = 0;
  RouteOptions route = {};
  bool has_bias = false;
  /// Coefficient of the balance loss (Fedus et al. 2021, Switch; Lepikhin et al. 2020), experts x the sum over experts
  /// of the share of all rows that an expert has, times the mean of its probability: 1 where loads are even. Rows are
  /// those of all ranks' micro-batches, or, of a deterministic training, each micro-batch's own. 0: none, and nothing
  /// is computed for it.
  float balance_loss = 0;
  /// Coefficient of the mean of the squared log-sum-exp of a token's logits (Zoph et al. 2022, ST-MoE). 0: none.
  float z_loss = 0;
};

/// Chooses the experts of each token: "weight" (experts, C) and, of some, "bias" (experts), in f32 whatever the model's
/// precision.
class Router : public Layer<Router> {
 public:
  Router(std::string path, const RouterOptions& options);

  const RouterOptions& options() const { return options_; }
  /// (N, C) -> the choice. In training with losses its weights carry them.
  Routing forward(const Tensor& x);
  bool has_losses() const { return options_.balance_loss > 0 || options_.z_loss > 0; }
  /// Sets the pass that the forwards from here on, and their recomputations, belong to; null: they are not trained on.
  void begin(std::shared_ptr<RouterPass> pass) { pass_ = std::move(pass); }
  /// Number of elements of a record.
  std::int64_t record_elems() const { return options_.experts + 1; }
  /// Sets where each forward that is trained on, once, adds its shares of rows, expert by expert, and behind them its
  /// balance loss without coefficient: f32 (record_elems), compute's. Empty: nowhere.
  void record_into(const Buffer& record) { record_ = record; }

 private:
  Tensor loss(const Tensor& logits, const Routing& routing);
  /// Shares of the rows of all ranks whose tokens count, which are as many on each.
  Tensor of_all_ranks(const Tensor& shares) const;
  void record(std::int64_t first, const Tensor& values) const;

  RouterOptions options_;
  Parameter& weight_;
  Parameter* bias_;  // null: none
  std::shared_ptr<RouterPass> pass_;
  Tensor shares_;  // shares of the last forward, which the second run of a recomputed one takes again
  Buffer record_;
};

/// Options of Experts.
struct ExpertsOptions {
  std::int64_t width = 0, hidden = 0, experts = 0;
  Activation activation = Activation::swiglu;  ///< a gated one
  bool has_bias = false;
  Init down_init = {.normal_std = kWeightDeviation};
};

/// Gated MLPs of one kind, as packed parameters, one expert's rows below the other's: "gate_up" (experts 2 hidden, C),
/// of each expert the gate's rows first; "down" (experts C, hidden); and, of some, "gate_up_bias" and "down_bias". A
/// unit of their own within the block's.
///
/// Experts are dealt over ranks where their unit's Partition cuts all parameters on dim 0 over an axis whose ranks read
/// different data: each has some of the experts, and tokens go to them (ExpertExchange). Such a model dies before its
/// World. UsageError of the first forward where that cannot be, or training is deterministic: sums over tokens then
/// follow from the number of ranks.
class Experts : public Layer<Experts> {
 public:
  Experts(std::string path, const ExpertsOptions& options);

  bool is_block() const override { return true; }
  /// (N, C) -> (N, C): the sum of what each token's experts make of it, by their weights.
  Tensor forward(const Tensor& x, const Routing& routing);
  /// Adds an adapter to one of the two products: gate_up's, or down's. The block owns it.
  void add_adapter(bool is_of_down, LoraAdapter& adapter) {
    (is_of_down ? down_adapter_ : gate_up_adapter_) = &adapter;
  }
  /// Sets the way of tokens to dealt experts, before the first forward.
  void dispatch_by(Dispatcher dispatcher) { dispatcher_ = dispatcher; }
  /// Exchange of dealt experts, from the first forward on; null: there is none.
  const ExpertExchange* exchange() const { return exchange_.get(); }

 private:
  /// Exchange of the runtime that shards it now; null where this rank has all experts.
  const ExpertExchange* find_exchange();

  /// grouped_linear(), and what its adapter adds.
  static Tensor product(const Tensor& x, Parameter& weight, Parameter* bias, LoraAdapter* adapter,
                        const Routing& routing);

  ExpertsOptions options_;
  Dispatcher dispatcher_ = Dispatcher::all_to_all;
  std::unique_ptr<ExpertExchange> exchange_;
  std::weak_ptr<const Placement> placement_;  // placement of the unit whose exchange it is
  Parameter &gate_up_, &down_;
  Parameter *gate_up_bias_, *down_bias_;                              // null: none
  LoraAdapter *gate_up_adapter_ = nullptr, *down_adapter_ = nullptr;  // null: none
};

/// Options of Mixture.
struct MixtureOptions {
  RouterOptions router;
  ExpertsOptions experts;
  std::int64_t shared_hidden = 0;  ///< hidden size of an expert that every token has beside those chosen; 0: none
  bool has_shared_gate = false;    ///< the shared expert's output is multiplied with a sigmoid of the token's own
};

/// A mixture of experts: "router", "experts" and, of some, "shared" and "shared_gate".
class Mixture : public Layer<Mixture, FeedForward> {
 public:
  Mixture(std::string path, const MixtureOptions& options);

  /// (..., C) -> (..., C)
  Tensor forward(const Tensor& x) { return last(body(x)); }
  Tensor body(const Tensor& x) override;
  Tensor last(const Tensor& hidden) override { return hidden; }
  /// Number of the experts' elements that a token does not meet.
  std::int64_t idle_parameter_count() const;

 private:
  Router& router_;
  Experts& experts_;
  Mlp* shared_;          // null: none
  Linear* shared_gate_;  // null: none
};

}  // namespace zs
