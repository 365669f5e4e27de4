// Calls in which one rank differs from the others.
#include "tests/fuzz/wrong_uses.h"

namespace zs::test {

Use other_use(const UseTrainer& t) {
  Use use = t.use;
  use.way.options.residence = {};
  return use;
}

void shard_otherwise(UseTrainer& t, const std::function<void(Way&)>& change) {
  Use use = other_use(t);
  change(use.way);
  UseTrainer other(t.job, use);
  other.step(1);
  t.job.context.stream().synchronize();
}

namespace {

bool is_odd(const UseTrainer& t) { return t.job.rank() == 1; }

}  // namespace

std::vector<Mistake> wrong_ranks() {
  return {
      {"learning rates differ",
       [](auto& t, auto&) {
         for (int step = 1; step <= 2; ++step) t.accumulate(step), t.optimizer->step(is_odd(t) ? 0.1f : 0.2f);
       },
       true},
      {"optimizers differ",
       [](auto& t, auto&) {
         t.optimizer.reset();
         if (is_odd(t))
           t.optimizer = std::make_unique<Lion>(*t.model, LionConfig{});
         else
           t.optimizer = std::make_unique<Sgd>(*t.model, SgdConfig{});
         t.use.is_in_backward = false;
         for (int step = 1; step <= 2; ++step) t.step(step);
       },
       true},
      {"strategies differ",
       [](auto& t, auto&) { shard_otherwise(t, [&](Way& way) { way.scheme = is_odd(t) ? "ddp" : "zero3"; }); }, true},
      {"models differ",
       [](auto& t, auto&) {
         Use use = other_use(t);
         if (is_odd(t)) use.pieces.push_back({Kind::linear, true});
         UseTrainer other(t.job, use);
         other.step(1);
       },
       true},
      {"saves differ", [](auto& t, auto&) { save(t.state(), "mine", {.step = is_odd(t) ? 1 : 2}); }, true},
      {"counts of an operation differ",
       [](auto& t, auto&) {
         const Tensor x = full(t.job.context, {is_odd(t) ? 8 : 9}, 1);
         t.job.world.communicator()->all_reduce(t.job.context.stream(), "mine", x.buffer(), ReduceOp::sum);
         t.job.context.stream().synchronize();
       },
       true},
      {"names of an operation differ",
       [](auto& t, auto&) {
         const Tensor x = full(t.job.context, {8}, 1);
         t.job.world.communicator()->all_reduce(t.job.context.stream(), is_odd(t) ? "mine" : "yours", x.buffer(),
                                                ReduceOp::sum);
         t.job.context.stream().synchronize();
       },
       true},
      {"an exception of one rank",
       [](auto& t, auto&) {
         if (is_odd(t)) throw UsageError("a mistake of one rank", "mend it");
         for (int step = 1; step <= 2; ++step) t.step(step);
       },
       true},
      {"a target of one rank",
       [](auto& t, auto&) {
         auto micro_batch = t.model->micro_batch();
         const Tensor logits = (*t.net)(Tensor::from_host(t.job.context, {1, kTime}, std::vector<std::int32_t>(kTime)));
         const std::vector<std::int32_t> targets(kTime, is_odd(t) ? 99 : 1);
         cross_entropy(logits, Tensor::from_host(t.job.context, {1, kTime}, targets)).backward();
         micro_batch.end();
         t.job.context.stream().synchronize();
       },
       true},
      {"writes of a scope differ",
       [](auto& t, auto&) {
         {
           const UnshardScope scope(t.model->runtime(), t.net->head);
           const Buffer value = scope.value(*t.net->head.own_parameters().front());
           t.job.context.launch({"edit", {}, {value}}, [value, x = is_odd(t) ? 1.0f : 2.0f](ExecContext&) {
             for (std::int64_t i = 0; i < value.elems; ++i) value.as<float>()[i] = x;
           });
         }
         t.step(1);
         t.job.context.stream().synchronize();
       },
       true},
  };
}

}  // namespace zs::test
