#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/nn/transformer_block.h"

namespace zs {

/// A model of what follows a sequence of tokens: its loss in training, and logits for sampling.
class LanguageModel : public Module {
 public:
  /// Scalar f32: mean cross entropy over the (B, T) tokens, in nats. ids and targets are i32. `options` as in
  /// lm_head_loss. Tokens see nothing of other documents than their own, and positions begin anew with each. Its
  /// backward minimises the losses of routers too, which are no part of the value and do not go by targets; where the
  /// seed is 0 the tokens are nothing to them.
  Tensor loss(const Tensor& ids, const Tensor& targets, const LossOptions& options = {},
              const Documents& documents = {});
  /// Sum of the cross entropies of each of the B sequences' targets, scalars without gradient; `counted`, (B, T): 1 for
  /// a target that counts, else 0.
  std::vector<Tensor> row_losses(const Tensor& ids, const Tensor& targets, const Tensor& counted,
                                 const LossOptions& options = {}, const Documents& documents = {});
  /// Loss whose weights, (B, T), `weigh` makes of those sums; null: those of the options.
  using WeighRows = std::function<Tensor(const std::vector<Tensor>& sums)>;
  Tensor loss_by_rows(const Tensor& ids, const Tensor& targets, const Tensor& counted, const WeighRows& weigh,
                      LossOptions options = {}, const Documents& documents = {});
  /// Adapters change the products, as they do from the beginning, or not.
  void use_adapters(bool are_on);
  /// Loss without gradient; before that `use` gets the logits of the N tokens, chunk by chunk: (rows, V') f32 from
  /// token `first` on.
  using UseLogits = std::function<void(std::int64_t first, const Tensor& logits)>;
  Tensor loss_and_logits(const Tensor& ids, const Tensor& targets, std::int64_t chunk, const UseLogits& use);
  /// (1, V') f32 logits of what follows token `position` of the one sequence ids (1, T). Without gradient. With a cache
  /// the tokens follow those that it has seen, and then it has seen them, too, up to this one: the logits are those of
  /// the whole sequence, to rounding.
  Tensor next_token_logits(const Tensor& ids, std::int64_t position, KvCache* cache = nullptr);

  /// Sets the recompute of every TransformerBlock in the model; or of each by itself, by its path.
  void set_recompute(Recompute recompute);
  void set_recompute(const std::function<Recompute(const std::string& path)>& of_block);
  /// Sets the keeper of every TransformerBlock, too.
  void set_input_keeper(InputKeeper* keeper);

  /// The routers of the mixtures of experts, in the order of the model.
  std::vector<Router*> routers();

  std::int64_t parameter_count() const;
  /// Number of parameters that a token's work grows with: all but an embedding that is not the head, too.
  virtual std::int64_t working_parameter_count() const { return parameter_count(); }

 protected:
  explicit LanguageModel(std::int64_t vocab) : Module(""), vocab_(vocab) {}

  /// Position of the first token that hidden() gets; and, below, the documents of these tokens.
  std::int64_t first_position() const { return cache_ != nullptr ? cache_->seen() : 0; }
  const Documents& documents() const { return documents_; }

 private:
  /// (B, T) -> (B, T, C): what the head meets.
  virtual Tensor hidden(const Tensor& ids) = 0;
  /// (V', C)
  virtual Parameter& head() = 0;
  /// Module that the head is a parameter of: it may be a unit of its own.
  virtual Module& head_module() = 0;

  /// Checks that ranks which compute one loss have the same tokens.
  void check_input(const char* what, const Tensor& ids) const;
  /// This rank's part of the head's classes.
  ClassParts class_parts();
  /// f32 logits of rows, (N', V').
  Tensor logits_of(const Tensor& rows);
  void use_cache(KvCache* cache);
  std::vector<Tensor> sums_of_rows(const Tensor& x, const Tensor& targets, const Tensor& counted,
                                   const LossOptions& options);
  /// Begins the routers' pass; null where they have no losses, or nothing is recorded. `counts`: see RouterPass.
  std::shared_ptr<RouterPass> begin_routers(Context& context, bool counts = true);

  std::int64_t vocab_;
  KvCache* cache_ = nullptr;
  Documents documents_;  // documents of the tokens that hidden() gets
};

}  // namespace zs
