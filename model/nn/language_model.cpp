#include "model/nn/language_model.h"

#include <algorithm>
#include <functional>
#include <memory>

#include "model/nn/tensor_partition.h"
#include "runtime/shard/collectives/collectives.h"
#include "runtime/tensor/autograd.h"

namespace zs {
namespace {

void for_each_module(Module& module, const std::function<void(Module&)>& visit) {
  visit(module);
  for (Module* child : module.children()) for_each_module(*child, visit);
}

/// The loss, whose backward tells the routers what theirs are multiplied with.
Tensor with_routers(const Tensor& loss, const std::shared_ptr<RouterPass>& pass, const LossOptions& options) {
  if (options.seed) {  // and no op may be between this loss and its backward
    pass->seed = Tensor::from_host(loss.context(), {}, std::vector{*options.seed});
    return loss;
  }
  return on_gradient(loss, [pass](const Tensor& grad) {
    pass->seed = grad;
    return Tensor{};
  });
}

}  // namespace

void LanguageModel::check_input(const char* what, const Tensor& ids) const {
  if (owner() == nullptr) return;
  const auto& groups = owner()->executor().groups();
  for (const std::string& axis : groups.grid().axes_of_same_data()) check_alike(groups.along(axis), axis, what, ids);
}

ClassParts LanguageModel::class_parts() {
  Communicator* const ranks = find_part_ranks(head_module(), head());
  if (ranks == nullptr) return {};
  if (head().part().dim != 0)
    throw UsageError(fmt::format("the head {} is cut on dim {}", head().name(), head().part().dim), "cut it on dim 0");
  return {.first = head().part().index * head().shape()[0], .combine = [ranks](const Tensor& x, bool takes_largest) {
            ranks->all_reduce(x.context().stream(), takes_largest ? "largest logit" : "sum over classes", x.buffer(),
                              takes_largest ? ReduceOp::max : ReduceOp::sum);
          }};
}

Tensor LanguageModel::logits_of(const Tensor& rows) {
  const Tensor own = lm_head_logits(rows, head());
  Communicator* const ranks = find_part_ranks(head_module(), head());
  return ranks == nullptr ? own : concat_over_ranks(*ranks, own, 1);
}

Tensor LanguageModel::loss(const Tensor& ids, const Tensor& targets, const LossOptions& options,
                           const Documents& documents) {
  return loss_by_rows(ids, targets, {}, nullptr, options, documents);
}

std::vector<Tensor> LanguageModel::sums_of_rows(const Tensor& x, const Tensor& targets, const Tensor& counted,
                                                const LossOptions& options) {
  const NoGradGuard no_grad(x.context());
  const std::int64_t rows = targets.shape()[0], tokens = targets.shape()[1];
  const Tensor flat = x.reshape({rows * tokens, x.shape()[-1]});
  std::vector<Tensor> sums;
  for (std::int64_t row = 0; row < rows; ++row) {
    const LossOptions own{
        .chunk = options.chunk, .ignored = options.ignored, .weights = counted.rows(row, 1), .parts = options.parts};
    const Tensor mean = lm_head_loss(flat.rows(row * tokens, tokens), head(), targets.rows(row, 1), vocab_, own);
    sums.push_back(mul(mean.reshape({1}), static_cast<float>(tokens)));
  }
  return sums;
}

std::vector<Tensor> LanguageModel::row_losses(const Tensor& ids, const Tensor& targets, const Tensor& counted,
                                              const LossOptions& options, const Documents& documents) {
  const ForwardScope scope = enter();
  const NoGradGuard no_grad(ids.context());
  documents_ = documents;
  const std::unique_ptr<Documents, void (*)(Documents*)> guard(&documents_, [](Documents* own) { *own = {}; });
  begin_routers(ids.context());
  check_input("ids", ids);
  check_input("targets", targets);
  const Tensor x = hidden(ids);
  const ForwardScope of_head = head_module().enter();
  LossOptions own = options;
  own.parts = class_parts();
  return sums_of_rows(head_module().input(x), targets, counted, own);
}

Tensor LanguageModel::loss_by_rows(const Tensor& ids, const Tensor& targets, const Tensor& counted,
                                   const WeighRows& weigh, LossOptions options, const Documents& documents) {
  const ForwardScope scope = enter();
  documents_ = documents;
  const std::unique_ptr<Documents, void (*)(Documents*)> guard(&documents_, [](Documents* own) { *own = {}; });
  const auto pass = begin_routers(ids.context(), options.seed != 0.0f);
  check_input("ids", ids);
  check_input("targets", targets);
  const Tensor x = hidden(ids);
  const ForwardScope of_head = head_module().enter();
  const Tensor in = head_module().input(x);
  options.parts = class_parts();
  if (weigh) {
    const NoGradGuard no_grad(ids.context());
    options.weights = weigh(sums_of_rows(in, targets, counted, options));
  }
  const Tensor loss = lm_head_loss(in, head(), targets, vocab_, options);
  return pass ? with_routers(loss, pass, options) : loss;
}

void LanguageModel::use_adapters(bool are_on) {
  for_each_module(*this, [=](Module& module) {
    if (auto* const adapters = dynamic_cast<LoraAdapters*>(&module)) adapters->set_on(are_on);
  });
}

Tensor LanguageModel::loss_and_logits(const Tensor& ids, const Tensor& targets, std::int64_t chunk,
                                      const UseLogits& use) {
  const ForwardScope scope = enter();
  const NoGradGuard no_grad(ids.context());
  begin_routers(ids.context());
  check_input("ids", ids);
  const Tensor last = hidden(ids);
  const ForwardScope of_head = head_module().enter();
  const Tensor x = head_module().input(last);
  const std::int64_t tokens = ids.numel(), rows = chunk > 0 ? chunk : lm_head_chunk_rows(tokens, head().shape()[0]);
  const Tensor flat = x.reshape({tokens, x.shape()[-1]});
  for (std::int64_t first = 0; first < tokens; first += rows)
    use(first, logits_of(flat.rows(first, std::min(rows, tokens - first))));
  return lm_head_loss(x, head(), targets, vocab_, {.seed = {}, .chunk = chunk, .parts = class_parts()});
}

std::shared_ptr<RouterPass> LanguageModel::begin_routers(Context& context, bool counts) {
  std::shared_ptr<RouterPass> pass;
  if (context.is_grad_enabled()) pass = std::make_shared<RouterPass>(RouterPass{.seed = {}, .counts = counts});
  bool has_losses = false;
  for (Router* router : routers()) {
    router->begin(pass);
    has_losses = has_losses || router->has_losses();
  }
  return has_losses ? pass : nullptr;
}

std::vector<Router*> LanguageModel::routers() {
  std::vector<Router*> all;
  for_each_module(*this, [&](Module& module) {
    if (auto* const router = dynamic_cast<Router*>(&module)) all.push_back(router);
  });
  return all;
}

void LanguageModel::use_cache(KvCache* cache) {
  cache_ = cache;
  for_each_module(*this, [=](Module& module) {
    if (auto* const attention = dynamic_cast<Attention*>(&module)) attention->use_cache(cache);
    if (auto* const adapters = dynamic_cast<LoraAdapters*>(&module)) adapters->use_cache(cache);
  });
}

Tensor LanguageModel::next_token_logits(const Tensor& ids, std::int64_t position, KvCache* cache) {
  const ForwardScope scope = enter();
  const NoGradGuard no_grad(ids.context());
  begin_routers(ids.context());
  check_input("ids", ids);
  use_cache(cache);
  const std::unique_ptr<LanguageModel, void (*)(LanguageModel*)> guard(
      this, [](LanguageModel* model) { model->use_cache(nullptr); });
  const Tensor last = hidden(ids);
  const ForwardScope of_head = head_module().enter();
  const Tensor x = head_module().input(last);
  if (cache != nullptr) cache->add_seen(position + 1);
  return logits_of(x.reshape({ids.numel(), x.shape()[-1]}).rows(position, 1));
}

void LanguageModel::set_recompute(Recompute recompute) {
  set_recompute([=](const std::string&) { return recompute; });
}

void LanguageModel::set_recompute(const std::function<Recompute(const std::string& path)>& of_block) {
  for_each_module(*this, [&](Module& module) {
    if (auto* const block = dynamic_cast<TransformerBlock*>(&module)) block->set_recompute(of_block(block->path()));
  });
}

void LanguageModel::set_input_keeper(InputKeeper* keeper) {
  for_each_module(*this, [=](Module& module) {
    if (auto* const block = dynamic_cast<TransformerBlock*>(&module)) block->set_input_keeper(keeper);
  });
}

std::int64_t LanguageModel::parameter_count() const {
  std::int64_t count = 0;
  const std::function<void(const Module&)> visit = [&](const Module& module) {
    for (const auto& parameter : module.own_parameters())
      count += parameter->part().whole_of(parameter->shape()).numel();
    for (const Module* child : module.children()) visit(*child);
  };
  visit(*this);
  return count;
}

}  // namespace zs
