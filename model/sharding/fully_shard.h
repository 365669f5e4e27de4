#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/sharding/shard_plan.h"
#include "runtime/tensor/autograd.h"

namespace zs {

/// Options of fully_shard.
struct FullyShardOptions {
  /// Strategy or mesh, precision, layout, schedule.
  ShardOptions shard = {};
  /// Policies by the path of a unit's module ("blocks.*", a NamePattern; the model's own is "root"), the first that
  /// matches; what fully_shard() was given for the module itself goes before. One that no unit matches is a UsageError.
  std::vector<std::pair<std::string, UnitPolicy>> policies = {};
  /// Parameters that stay out of every unit (shard_module).
  IsIgnored is_ignored = {};
  /// Says all of that instead: which modules are units, their policies, what is ignored (shard_by_plan).
  std::optional<Plan> plan = {};
};

/// Options of a micro-batch or an evaluation.
struct MicroBatchOptions {
  /// Last micro-batch of its step: gradients are complete after it, and the optimizer comes next.
  bool last = true;
  /// Index, among all samples of the step, of this rank's first: dropout's random numbers follow from it, so that they
  /// are the same at any number of ranks. None: the micro-batches of all ranks have as many samples, and are dealt out
  /// one after the other, this rank's i-th being number i x ranks + rank.
  std::optional<std::int64_t> first_sample = {};
};

/// A micro-batch, from where it is made to the end of its block (or `end`): forward and backward come in between. When
/// an exception leaves the block, the micro-batch is abandoned: every rank must have seen the exception. Alike on every
/// rank; one host thread uses it.
class [[nodiscard]] MicroBatch {
 public:
  MicroBatch(MicroBatch&& other) noexcept
      : runtime_(std::exchange(other.runtime_, nullptr)),
        model_(other.model_),
        no_grad_(std::move(other.no_grad_)),
        exceptions_(other.exceptions_) {}
  MicroBatch& operator=(MicroBatch&&) = delete;
  /// Throws what `end` throws, unless an exception is under way.
  ~MicroBatch() noexcept(false);

  /// d loss / d loss is `seed`. The same as zs::backward(loss, seed), and Tensor::backward.
  void backward(const Tensor& loss, float seed = 1.0f);
  /// Ends the micro-batch here, instead of at the end of the block. UsageError where a training had no backward, or
  /// where it was called before.
  void end();

 private:
  friend class ShardedModel;
  MicroBatch(ShardedRuntime& runtime, Mode mode, const MicroBatchOptions& options);
  void abandon() noexcept;

  ShardedRuntime* runtime_;  // null: it has ended
  Lifetime::Watch model_;
  std::unique_ptr<NoGradGuard> no_grad_;
  int exceptions_;
};

/// A model whose parameters are sharded: what fully_shard() makes of its root. Owns the runtime; the modules, which
/// outlive it, are as before when it ends.
class ShardedModel {
 public:
  ShardedModel(Module& root, std::unique_ptr<ShardedRuntime> runtime) : root_(&root), runtime_(std::move(runtime)) {}
  ShardedModel(ShardedModel&&) noexcept = default;
  ShardedModel& operator=(ShardedModel&&) = delete;
  ~ShardedModel();

  MicroBatch micro_batch(const MicroBatchOptions& options = {}) { return {runtime(), Mode::train, options}; }
  /// Forward alone, which records nothing, with the parameters that MixedPrecisionPolicy says for it. `last`: of this
  /// validation.
  MicroBatch evaluation(const MicroBatchOptions& options = {}) { return {runtime(), Mode::eval, options}; }

  /// The switches of ShardedRuntime by those names, for the unit that `module` is and, unless `recurse` is false, those
  /// below it.
  void set_requires_gradient_sync(const Module& module, bool requires_sync, bool recurse = true);
  void set_requires_all_reduce(const Module& module, bool requires_all_reduce, bool recurse = true);
  void set_reshard_after_forward(const Module& module, bool reshards, bool recurse = true);
  void set_unshard_in_backward(const Module& module, bool unshards, bool recurse = true);
  void set_reshard_after_backward(const Module& module, bool reshards, bool recurse = true);

  /// The number of the unit that a module is, or a part of.
  int unit_of(const Module& module) const;
  /// UsageError of a model that was moved from.
  ShardedRuntime& runtime() const;
  Executor& executor() const { return runtime().executor(); }
  /// Stands for the executor where one is asked for: `AdamW optimizer(model, {});`. It lasts as long as the model.
  operator Executor&() { return executor(); }  // NOLINT(google-explicit-constructor): stands for it

 private:
  template <class Set>
  void for_each_unit(const char* call, const Module& module, bool recurse, const Set& set) const;

  Module* root_;
  std::unique_ptr<ShardedRuntime> runtime_;
};

/// Makes `module` a unit of its own when the model that contains it is sharded: its parameters, but for those of units
/// below it, are gathered, freed and reduced as one. `policy`: what it does otherwise than the rest. UsageError where
/// it was called for the module before, or the model is sharded already.
void fully_shard(Module& module, const UnitPolicy& policy = {});

/// Shards a model: the last call, for its root, after those for the modules below. The root unit owns what is in no
/// other. Where no module below was given to fully_shard(), those that say is_block() are units. Collective.
///
///     for (Block& block : net.blocks) zs::fully_shard(block);
///     zs::ShardedModel model = zs::fully_shard(net, context, *world, {.shard = {.scheme = {.strategy =
///     zs::Strategy::hsdp}}});
[[nodiscard]] ShardedModel fully_shard(Module& root, Context& context, World& world,
                                       const FullyShardOptions& options = {});

}  // namespace zs
