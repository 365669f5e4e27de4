#include "model/train/session/router_records.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "runtime/tensor/host_view.h"

namespace zs {
namespace {

/// Number of the block in "blocks.3.mlp.router".
std::int64_t layer_of(const std::string& path) {
  constexpr std::string_view kBlocks = "blocks.";
  std::int64_t layer = 0;
  if (path.starts_with(kBlocks)) std::from_chars(path.data() + kBlocks.size(), path.data() + path.size(), layer);
  return layer;
}

/// shares: of a step's micro-batches, summed.
MixtureLoad load_of(std::span<const float> shares) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0), experts = static_cast<double>(shares.size());
  double entropy = 0;
  for (const float share : shares)
    if (share > 0) entropy -= share / sum * std::log(share / sum);
  const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
  return {.most = static_cast<float>(*most / sum * experts),
          .least = static_cast<float>(*least / sum * experts),
          .entropy = experts > 1 ? static_cast<float>(entropy / std::log(experts)) : 1};
}

}  // namespace

RouterRecords::RouterRecords(Context& context, Executor& executor, LanguageModel& model)
    : context_(context), executor_(executor), routers_(model.routers()) {
  for (const Router* router : routers_) {
    layers_.push_back(layer_of(router->path()));
    elems_ += router->record_elems();
  }
  memory_ = context.device().pool().acquire(elems_ * size_of(DType::f32), context.stream(), "scalars");
  std::int64_t first = 0;
  for (Router* router : routers_) {
    router->record_into(memory_.buffer(DType::f32, elems_).slice(first, router->record_elems()));
    first += router->record_elems();
  }
}

void RouterRecords::clear() {
  const Buffer all = memory_.buffer(DType::f32, elems_);
  context_.launch({"clear_records", {}, {all}},
                  [&kernels = context_.kernels(), all](ExecContext& exec) { kernels.zero(exec, all); });
}

void RouterRecords::sum() {
  executor_.compute_comm().all_reduce(context_.stream(), "records", memory_.buffer(DType::f32, elems_), ReduceOp::sum);
}

std::vector<MixtureLoad> RouterRecords::loads() const {
  const HostView view(context_, context_.stream(), memory_.buffer(DType::f32, elems_));
  const auto* at = view.as<float>();
  std::vector<MixtureLoad> loads;
  for (std::size_t i = 0; i < routers_.size(); ++i) {
    const RouterOptions& options = routers_[i]->options();
    const std::span shares(at, static_cast<std::size_t>(options.experts));
    MixtureLoad& load = loads.emplace_back(load_of(shares));
    load.layer = layers_[i];
    // Each forward's shares add up to 1: so many forwards there were.
    if (options.balance_loss > 0)
      load.balance_loss = at[options.experts] / std::accumulate(shares.begin(), shares.end(), 0.0f);
    at += routers_[i]->record_elems();
  }
  return loads;
}

}  // namespace zs
