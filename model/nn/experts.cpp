#include "model/nn/experts.h"

#include "runtime/base/usage_error.h"

namespace zs {
namespace {

/// (N, E) f32: what a router takes for the probability of each expert, adding up to 1.
Tensor probabilities(const Tensor& logits, RouterScores scores) {
  if (scores == RouterScores::softmax) return softmax(logits);
  const Tensor each = sigmoid(logits);
  return each / sum(each, {-1}, true);
}

/// Scalar: the mean of the squared log-sum-exp of each row.
Tensor squared_log_sums(const Tensor& logits) {
  const Tensor largest = max(logits.detach(), {-1}, true);
  const Tensor sums = log(sum(exp(logits - largest), {-1}, true)) + largest;
  return mean(sums * sums);
}

}  // namespace

Router::Router(std::string path, const RouterOptions& options)
    : Layer(std::move(path)),
      options_(options),
      weight_(add_parameter("weight", {options.experts, options.width}, {.normal_std = kWeightDeviation}, true)),
      bias_(options.has_bias ? &add_parameter("bias", {options.experts}, {}, false) : nullptr) {
  if (options.route.chosen < 1 || options.route.chosen > options.experts)
    throw UsageError(
        fmt::format("router \"{}\" chooses {} of {} experts", this->path(), options.route.chosen, options.experts),
        "let it choose at least one, and at most as many as there are");
}

Routing Router::forward(const Tensor& x) {
  const Tensor logits = router_logits(input(x), weight_, bias_);
  Routing routing = route(logits, options_.route);
  if (pass_ == nullptr) return routing;
  record(0, routing.shares);
  if (!has_losses()) return routing;
  routing.weights = with_loss(routing.weights, loss(logits, routing), [pass = pass_] { return pass->seed; });
  return routing;
}

Tensor Router::loss(const Tensor& logits, const Routing& routing) {
  if (options_.balance_loss == 0) return squared_log_sums(logits) * options_.z_loss;
  if (!logits.context().mode().runs_again) shares_ = is_deterministic() ? routing.shares : of_all_ranks(routing.shares);
  const Tensor met = mean(probabilities(logits, options_.route.scores), {0}) * shares_;
  const Tensor balance = sum(met) * static_cast<float>(options_.experts);
  record(options_.experts, balance);
  const Tensor loss = balance * options_.balance_loss;
  return options_.z_loss == 0 ? loss : loss + squared_log_sums(logits) * options_.z_loss;
}

Tensor Router::of_all_ranks(const Tensor& shares) const {
  const Tensor mean = mean_over_ranks(pass_->counts ? shares : shares * 0.0f);
  return mean / sum(mean, {0}, true);
}

void Router::record(std::int64_t first, const Tensor& values) const {
  Context& context = values.context();
  if (record_.elems == 0 || !pass_->counts || context.mode().runs_again) return;
  const Buffer out = record_.slice(first, values.numel()), in = values.buffer();
  context.launch({"record_experts", {in, out}, {out}},
                 [&kernels = context.kernels(), out, in](ExecContext& exec) { kernels.accumulate(exec, out, in); });
}

Experts::Experts(std::string path, const ExpertsOptions& options)
    : Layer(std::move(path)),
      options_(options),
      gate_up_(add_parameter("gate_up", {options.experts * 2 * options.hidden, options.width},
                             {.normal_std = kWeightDeviation}, true)),
      down_(add_parameter("down", {options.experts * options.width, options.hidden}, options.down_init, true)),
      gate_up_bias_(options.has_bias ? &add_parameter("gate_up_bias", {options.experts * 2 * options.hidden}, {}, false)
                                     : nullptr),
      down_bias_(options.has_bias ? &add_parameter("down_bias", {options.experts * options.width}, {}, false)
                                  : nullptr) {
  const auto count = static_cast<std::size_t>(options.experts);
  gate_up_.set_matrix_rows(std::vector(2 * count, options.hidden));
  down_.set_matrix_rows(std::vector(count, options.width));
}

Tensor Experts::forward(const Tensor& x, const Routing& routing) {
  const ExpertExchange* const exchange = find_exchange();
  if (exchange != nullptr) {
    const DealtRows dealt = exchange->dispatch(input(x), routing);
    const Tensor both = grouped_linear(dealt.rows, gate_up_, gate_up_bias_, dealt.routing);
    const bool is_swiglu = options_.activation == Activation::swiglu;
    const Tensor hidden = is_swiglu ? expert_swiglu(both, dealt.routing) : gated(both, options_.activation);
    return output(exchange->combine(grouped_linear(hidden, down_, down_bias_, dealt.routing), routing, dealt));
  }
  const Tensor rows = gather_tokens(input(x), routing);
  const Tensor hidden = gated(product(rows, gate_up_, gate_up_bias_, gate_up_adapter_, routing), options_.activation);
  return output(combine_tokens(product(hidden, down_, down_bias_, down_adapter_, routing), routing));
}

Tensor Experts::product(const Tensor& x, Parameter& weight, Parameter* bias, LoraAdapter* adapter,
                        const Routing& routing) {
  const Tensor y = grouped_linear(x, weight, bias, routing);
  if (adapter == nullptr || !adapter->is_on()) return y;
  return add(y, cast((*adapter)(adapter->cast_input(x), routing), y.dtype()));
}

const ExpertExchange* Experts::find_exchange() {
  const ParameterPart& part = gate_up_.part();
  if (part.is_whole()) return nullptr;
  const Executor& executor = owner()->executor();
  const auto& placement = executor.units().at(static_cast<std::size_t>(owner_unit())).placement;
  if (placement_.lock() == placement) return exchange_.get();
  const std::string& axis = placement->options.partition.axis;
  const auto refuse = [&](const std::string& why, const char* what_to_do) {
    throw UsageError(fmt::format("{} are dealt over axis {}{}", path(), axis, why), what_to_do);
  };
  if (part.dim != 0 || down_.part().dim != 0 || down_.part().is_whole() || options_.experts % part.count != 0)
    refuse(fmt::format(", and {} of them have no {} equal parts", options_.experts, part.count),
           "cut all parameters on dim 0, over a number of ranks that divides the experts");
  if (!executor.groups().grid().reads_data(axis))
    refuse(", whose ranks read the same data", "use an axis whose ranks read different data");
  if (gate_up_adapter_ != nullptr || down_adapter_ != nullptr)
    refuse(", and have adapters", "leave experts.parallel out, or adapters of experts");
  if (is_deterministic())
    refuse(" in a deterministic training", "do without one of the two: their sums follow from the number of ranks");
  exchange_ = std::make_unique<ExpertExchange>(executor.groups().along(axis), dispatcher_, path());
  placement_ = placement;
  return exchange_.get();
}

Mixture::Mixture(std::string path, const MixtureOptions& options)
    : Layer(std::move(path)),
      router_(make_child<Router>("router", options.router)),
      experts_(make_child<Experts>("experts", options.experts)),
      shared_(options.shared_hidden > 0
                  ? &make_child<Mlp>("shared", MlpOptions{.width = options.experts.width,
                                                          .hidden = options.shared_hidden,
                                                          .activation = options.experts.activation,
                                                          .has_bias = options.experts.has_bias,
                                                          .down_init = options.experts.down_init})
                  : nullptr),
      shared_gate_(options.has_shared_gate && shared_ != nullptr
                       ? &make_child<Linear>("shared_gate", options.experts.width, 1, LinearOptions{.has_bias = false})
                       : nullptr) {}

Tensor Mixture::body(const Tensor& x) {
  const ForwardScope scope = enter();
  const Tensor tokens = x.reshape({x.numel() / x.shape()[-1], x.shape()[-1]});
  const Tensor chosen = experts_(tokens, router_(tokens)).reshape(x.shape());
  if (shared_ == nullptr) return output(chosen);
  const Tensor shared = (*shared_)(x);
  return output(chosen + (shared_gate_ != nullptr ? shared * sigmoid((*shared_gate_)(x)) : shared));
}

std::int64_t Mixture::idle_parameter_count() const {
  std::int64_t count = 0;
  for (const auto& parameter : experts_.own_parameters())
    count += parameter->part().whole_of(parameter->shape()).numel();
  const RouterOptions& options = router_.options();
  return count / options.experts * (options.experts - options.route.chosen);
}

}  // namespace zs
