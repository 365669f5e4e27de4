// Calls at the wrong time, of what has ended, or with options that make no sense.
#include <limits>
#include <thread>

#include "tests/fuzz/wrong_uses.h"

namespace zs::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<Mistake> of_times() {
  return {
      {"step without gradients", [](auto& t, auto&) { t.optimizer->step(0.1f); }},
      {"step twice", [](auto& t, auto&) { t.step(1), t.optimizer->step(0.1f); }},
      {"step within a micro-batch",
       [](auto& t, auto&) {
         auto micro_batch = t.model->micro_batch();
         t.loss(1, 0).backward();
         t.optimizer->step(0.1f);
       }},
      {"end_step without its begin", [](auto& t, auto&) { t.optimizer->end_step(); }},
      {"two micro-batches at once",
       [](auto& t, auto&) {
         auto one = t.model->micro_batch();
         auto two = t.model->micro_batch();
       }},
      {"an evaluation within a micro-batch",
       [](auto& t, auto&) {
         auto one = t.model->micro_batch();
         auto two = t.model->evaluation();
       }},
      {"forward outside", [](auto& t, auto&) { t.loss(1, 0); }},
      {"backward outside",
       [](auto& t, auto&) {
         Tensor loss;
         {
           auto micro_batch = t.model->micro_batch({.last = false});
           loss = t.loss(1, 0);
           t.loss(1, 0).backward();
         }
         loss.backward();
       }},
      {"backward twice",
       [](auto& t, auto&) {
         auto micro_batch = t.model->micro_batch();
         const Tensor loss = t.loss(1, 0);
         loss.backward(), loss.backward();
       }},
      {"backward of several",
       [](auto& t, auto&) {
         auto micro_batch = t.model->micro_batch();
         (*t.net)(Tensor::from_host(t.job.context, {1, kTime}, std::vector<std::int32_t>(kTime))).backward();
       }},
      {"backward of no gradient", [](auto& t, auto&) { full(t.job.context, {1}, 1).backward(); }},
      {"backward in an evaluation",
       [](auto& t, auto&) {
         auto evaluation = t.model->evaluation();
         t.loss(1, 0).backward();
       }},
      {"no backward", [](auto& t, auto&) { t.model->micro_batch().end(); }},
      {"thawed within a micro-batch",
       [](auto& t, auto&) {
         set_trainable(*t.net, false);
         auto micro_batch = t.model->micro_batch();
         const Tensor loss = t.loss(1, 0);
         set_trainable(*t.net, true);
         loss.backward();
       }},
      {"a scope within a micro-batch",
       [](auto& t, auto&) {
         auto micro_batch = t.model->micro_batch();
         const UnshardScope scope(t.model->runtime(), *t.net);
       }},
      {"a micro-batch within a scope",
       [](auto& t, auto&) {
         const UnshardScope scope(t.model->runtime(), *t.net);
         auto micro_batch = t.model->micro_batch();
       }},
      {"two scopes of a unit",
       [](auto& t, auto&) { const UnshardScope one(t.model->runtime(), *t.net), two(t.model->runtime(), *t.net); }},
      {"a save within a micro-batch",
       [](auto& t, auto&) {
         auto micro_batch = t.model->micro_batch();
         save(t.state(), "within", {.step = 1});
       }},
      {"an ended micro-batch",
       [](auto& t, auto&) {
         auto micro_batch = t.model->micro_batch({.last = false});
         t.loss(1, 0).backward();
         micro_batch.end(), micro_batch.end();
       }},
      {"a second thread",
       [](auto& t, auto&) {
         auto micro_batch = t.model->micro_batch();
         std::exception_ptr thrown;
         std::thread([&] {
           try {
             t.loss(1, 0);
           } catch (...) {
             thrown = std::current_exception();
           }
         }).join();
         if (thrown) std::rethrow_exception(thrown);
       }},
      {"sharded twice", [](auto& t, auto&) { const ShardedModel again = fully_shard(*t.net, t.job); }},
      {"swap without an average",
       [](auto& t, auto&) {
         Sgd plain(*t.model, {});
         plain.swap_average();
       }},
  };
}

std::vector<Mistake> of_ends() {
  return {
      {"step after the model", [](auto& t, auto&) { t.model.reset(), t.optimizer->step(0.1f); }},
      {"micro-batch after the net", [](auto& t, auto&) { t.net.reset(), t.model->micro_batch().end(); }},
      {"end after the model",
       [](auto& t, auto&) {
         auto micro_batch = t.model->micro_batch();
         t.loss(1, 0).backward();
         t.model.reset();
         micro_batch.end();
       }},
      {"backward after the model",
       [](auto& t, auto&) {
         auto micro_batch = t.model->micro_batch();
         const Tensor loss = t.loss(1, 0);
         t.model.reset();
         loss.backward();
       }},
      {"backward after the net",
       [](auto& t, auto&) {
         auto micro_batch = t.model->micro_batch();
         const Tensor loss = t.loss(1, 0);
         t.net.reset();
         loss.backward();
       }},
      {"moved from",
       [](auto& t, auto&) {
         const ShardedModel other = std::move(*t.model);
         t.model->micro_batch().end();
       }},
      {"a scope after the model",
       [](auto& t, auto&) {
         const UnshardScope scope(t.model->runtime(), *t.net);
         t.model.reset();
       }},
      {"another model's optimizer",
       [](auto& t, auto&) {
         UseTrainer other(t.job, other_use(t));
         save({t.job.world, *t.model, *other.optimizer}, "other", {.step = 1});
       }},
  };
}

std::vector<Mistake> of_numbers() {
  return {
      {"a unit",
       [](auto& t, auto& r) {
         t.model->runtime().unshard(r.template of<int>({-1, 50, 1 << 30})).wait();
       }},
      {"a unit to reshard",
       [](auto& t, auto& r) {
         t.model->runtime().reshard(r.template of<int>({-1, 50, 1 << 30}));
       }},
      {"a scope's unit",
       [](auto& t, auto& r) {
         const UnshardScope scope(t.model->runtime(), std::vector<int>{r.template of<int>({-1, 50})});
       }},
      {"a prefetched unit",
       [](auto& t, auto& r) {
         t.model->runtime().set_prefetch(ExecOrder::Phase::forward, 0, {r.template of<int>({-1, 50})});
       }},
      {"a list's index",
       [](auto& t, auto& r) {
         t.net->pieces[r.template of<int>({-1, 50})].path();
       }},
      {"a learning rate",
       [](auto& t, auto& r) {
         t.accumulate(1), t.optimizer->step(r.template of<float>({-1, kNan, HUGE_VALF}));
       }},
      {"a number of steps", [](auto& t, auto& r) { t.optimizer->set_scalars(0.1f, -r.below(3)); }},
      {"prefetch",
       [](auto& t, auto& r) {
         shard_otherwise(t, [&](Way& way) { way.options.schedule.prefetch = -1 - r.below(5); });
       }},
      {"limit",
       [](auto& t, auto& r) { shard_otherwise(t, [&](Way& way) { way.options.schedule.limit = -1 - r.below(5); }); }},
      {"reductions",
       [](auto& t, auto& r) {
         shard_otherwise(t, [&](Way& way) { way.options.schedule.max_reductions_in_flight = -r.below(5); });
       }},
      {"shards of bytes",
       [](auto& t, auto& r) {
         shard_otherwise(t, [&](Way& way) {
           way.options.layout = {.layout = Layout::per_parameter, .min_shard_bytes = -1 - r.below(5)};
         });
       }},
      {"division by 0",
       [](auto& t, auto& r) {
         shard_otherwise(t, [&](Way& way) {
           way.options.division = {Division::Rule::custom, r.template of<float>({0, kNan, -1})};
         });
       }},
      {"groups that do not divide",
       [](auto& t, auto& r) {
         Use use = other_use(t);
         const ShardOptions options{.scheme = {.strategy = Strategy::hsdp, .group_size = 5 + r.below(9)}};
         const auto net = std::make_unique<RandomNet>(use.pieces);
         const ShardedModel model = fully_shard(*net, t.job, {.shard = options});
       }},
      {"a beta",
       [](auto& t, auto& r) {
         AdamW(*t.model, {.beta1 = r.template of<float>({1, -0.1f, 2, kNan})});
       }},
      {"an eps",
       [](auto& t, auto& r) {
         AdamW(*t.model, {.eps = r.template of<float>({0, -1, kNan})});
       }},
      {"a clip",
       [](auto& t, auto& r) {
         Sgd(*t.model, {.clip = r.template of<float>({-1, kNan})});
       }},
      {"a momentum",
       [](auto& t, auto& r) {
         Sgd(*t.model, {.momentum = r.template of<float>({1, -0.1f, kNan})});
       }},
      {"a decay",
       [](auto& t, auto& r) {
         Lion(*t.model, {.weight_decay = r.template of<float>({-1, kNan})});
       }},
      {"an average",
       [](auto& t, auto& r) {
         Sgd(*t.model, {.average = r.template of<float>({1, -0.1f, kNan})});
       }},
      {"a group of nothing",
       [](auto& t, auto&) {
         Sgd(*t.model, {.groups = {{"nothing.*", 1}}});
       }},
      {"a matrix of nothing", [](auto& t, auto&) { Muon(*t.model, {.matrices = {"nothing.*"}}); }},
      {"a norm's power",
       [](auto& t, auto& r) {
         t.accumulate(1), clip_grad_norm(*t.model, 1, {.power = r.template of<float>({0, -1, kNan})});
       }},
      {"a largest norm",
       [](auto& t, auto& r) {
         t.accumulate(1), clip_grad_norm(*t.model, r.template of<float>({-1, kNan}));
       }},
      {"a root",
       [](auto& t, auto& r) {
         broadcast_parameters(t.model->runtime(), r.template of<int>({-1, 50}));
       }},
      {"a factor of copies",
       [](auto& t, auto& r) {
         UseTrainer other(t.job, other_use(t));
         copy_weights(*t.model, *other.model, r.template of<float>({kNan, HUGE_VALF}));
       }},
      {"a load of nothing", [](auto& t, auto&) { load(t.state(), "nowhere/step-1"); }},
      {"a load of another model",
       [](auto& t, auto&) {
         const std::string saved = save(t.state(), t.fresh_folder("mine"), {.step = 1});
         Use use = other_use(t);
         use.pieces.push_back({Kind::linear, true});
         UseTrainer other(t.job, use);
         load(other.state(), saved);
       }},
      {"a save over another",
       [](auto& t, auto&) {
         save(t.state(), t.fresh_folder("mine"), {.step = 1});
         save(t.state(), "mine", {.step = 1});
       }},
      {"weights of nowhere",
       [](auto& t, auto&) { load_safetensors(t.job.world, t.model->runtime(), "nowhere.safetensors", {}); }},
      {"a broadcast's root",
       [](auto& t, auto& r) {
         const Tensor x = full(t.job.context, {8}, 1);
         t.job.world.communicator()->broadcast(t.job.context.stream(), "mine", x.buffer(),
                                               r.template of<int>({-1, 50}));
         t.job.context.stream().synchronize();
       }},
      {"a gradient of another shape",
       [](auto& t, auto&) {
         auto micro_batch = t.model->micro_batch();
         Tensor x = (*t.net)(Tensor::from_host(t.job.context, {1, kTime}, std::vector<std::int32_t>(kTime)));
         Tensor y = full(t.job.context, x.shape(), 0);
         record_op(y, "mine", {x}, {},
                   [](const Tensor& dy) { return std::vector<Tensor>{full(dy.context(), {3}, 1)}; });
         sum(y).backward();
       }},
      {"gradients of no input",
       [](auto& t, auto&) {
         auto micro_batch = t.model->micro_batch();
         Tensor x = (*t.net)(Tensor::from_host(t.job.context, {1, kTime}, std::vector<std::int32_t>(kTime)));
         Tensor y = full(t.job.context, x.shape(), 0);
         record_op(y, "mine", {x}, {}, [](const Tensor&) { return std::vector<Tensor>{}; });
         sum(y).backward();
       }},
      {"a launch of nothing",
       [](auto& t, auto&) {
         t.job.context.launch({"mine", {}, {}}, {});
         t.job.context.stream().synchronize();
       }},
  };
}

}  // namespace

std::vector<Mistake> wrong_calls() {
  std::vector<Mistake> all;
  for (const auto& some : {of_times(), of_ends(), of_numbers()}) all.insert(all.end(), some.begin(), some.end());
  return all;
}

}  // namespace zs::test
