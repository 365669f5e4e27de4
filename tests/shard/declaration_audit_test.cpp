// Every op does to memory what it declares, no less and no more: the order verifier believes the declarations.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include <mutex>
#include <optional>

#include "model/train/session/session.h"
#include "runtime/shard/checkpoint/checkpoint.h"
#include "runtime/shard/checkpoint/state_by_name.h"
#include "runtime/shard/optimizers/muon.h"
#include "runtime/shard/optimizers/parameter_norms.h"
#include "runtime/shard/runtime/unshard_scope.h"
#include "runtime/tensor/experts.h"
#include "tests/model/temp_dir.h"
#include "tests/shard/audit_device.h"
#include "tests/shard/audited_ops.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/exchange_ops.h"
#include "tests/shard/names_in_sources.h"
#include "tests/shard/scheme_cases.h"
#include "tests/shard/tiny_training.h"

namespace zs::test::declaration_audit_test {
namespace {

struct Audit {
  std::vector<std::string> findings;
  Names ops;
};

/// Two steps, a validation, a sample and a checkpoint of a small model, on every rank.
Audit audit_training(const Config& config, int ranks = 2) {
  Audit audit;
  std::mutex mutex;
  const TempDir folder;
  const auto body = [&](World& world) {
    AuditDevice device(std::int64_t{8} << 20, world.rank());
    {
      Session session(device, world, config);
      begin_adapters(session);
      const ReadSamples read = [&](std::int64_t first) {
        std::vector<std::int32_t> inputs(static_cast<std::size_t>(config.train.micro_batch * config.train.sequence));
        for (std::size_t i = 0; i < inputs.size(); ++i)
          inputs[i] = static_cast<std::int32_t>((static_cast<std::size_t>(first) * 5 + i * 7) %
                                                static_cast<std::size_t>(config.model.vocab));
        std::vector<std::int32_t> targets = inputs;
        std::reverse(targets.begin(), targets.end());
        if (config.data.has_ignored_targets) targets[static_cast<std::size_t>(first) % 3] = kIgnoredTarget;
        return SampleBatch{inputs, targets};
      };
      for (int step = 1; step <= 2; ++step) {
        session.enqueue_step(step, 1e-2f, read, false);
        session.finish_step();
      }
      session.validate(read);
      save({world, session.runtime().executor(), session.optimizer()}, folder.path(),
           {.step = 2, .attributes = {}, .with_frozen = config.precision.quantize == "none"});
      KvCache cache(config.train.sequence);
      session.next_token_logits({1, 2}, &cache);
      session.next_token_logits({3}, &cache);
    }
    const std::lock_guard lock(mutex);
    audit.findings.insert(audit.findings.end(), device.findings().begin(), device.findings().end());
    audit.ops.insert(device.audited().begin(), device.audited().end());
  };
  run_local_world(ranks, {.timeout_s = 60}, body);
  return audit;
}

Config small_config() {
  Config config = tiny_config();
  config.model.layers = 1;
  config.model.width = 16;
  config.train.sequence = 8;
  config.train.global_batch = 4;
  config.run.validate_every = 1;
  config.run.validate_batches = 1;
  return config;
}

/// Everything that casts: bf16 parameters and reductions, f32 sums of activations and of several micro-batches'
/// gradients, f32 validations.
void choose_narrow_sums(Config& config) {
  config.precision = {.param = "bf16", .reduce = "bf16", .output = "f32", .validation = "f32"};
  config.train.deterministic = false;
  config.train.global_batch = 8;
  config.shard.reduce_every_micro_batch = false;
}

/// x, by an op that gives a share of zeros of the parameter's gradient.
Tensor give_share(const Tensor& x, Parameter& parameter, bool in_place) {
  Tensor y = x.detach();
  record_op(y, "give_share", {x}, {&parameter}, [&parameter, in_place](const Tensor& dy) {
    if (in_place) parameter.grad_target();
    if (!in_place) parameter.add_grad(dy.context(), Tensor::zeros(dy.context(), parameter.shape(), DType::f32));
    return std::vector<Tensor>{dy};
  });
  return y;
}

/// A micro-batch of a chain on one rank, whose units `body` uses as it likes: the input of the head follows from its
/// own.
Names audit_chain(const std::function<Tensor(ShardedRuntime&, Chain&, Tensor)>& body) {
  AuditDevice device(std::int64_t{1} << 20);
  const auto world = make_single_world({.timeout_s = 60});
  Context context(device);
  const Tensor zeros = Tensor::zeros(context, {8}, DType::f32);
  Chain model;
  ShardedRuntime runtime(context, *world, {});
  shard_module(model, runtime, Units::block);
  runtime.begin_micro_batch(Mode::train, true);
  {
    const ForwardScope root(&runtime, 0);
    const Tensor y = body(runtime, model, linear(chain_input(context, 0), model.head, nullptr));
    backward(lm_head_loss(y, model.head, chain_targets(context), kChainWidth));
  }
  runtime.end_micro_batch();
  CHECK(fmt::format("{}", fmt::join(device.findings(), "; ")) == "");
  return device.audited();
}

/// A unit of which only a part is used, a user's ops, and rows beside their whole: no step of a whole model has them.
Names audit_the_rest() {
  return audit_chain([](ShardedRuntime& runtime, Chain& model, Tensor y) {
    {
      const ForwardScope block(&runtime, 1);
      y = linear(y, model.layers[0]->weight, nullptr);
      y = give_share(give_share(y, model.layers[0]->weight, true), model.layers[0]->weight, false);
      y = add(y, y.rows(0, kChainRows));
      y = mul(y, as_tensor(y.context(), model.layers[0]->weight).rows(0, 1));
    }
    const ForwardScope block(&runtime, 2);
    return give_share(y, model.layers[1]->weight, true);
  });
}

/// A mixture of experts, each of which has a row of a layer's weight.
Names audit_mixture() {
  return audit_chain([](ShardedRuntime& runtime, Chain& model, const Tensor& y) {
    const ForwardScope block(&runtime, 1);
    Parameter &weight = model.layers[0]->weight, &bias = model.layers[0]->bias;
    const Routing routing = route(router_logits(y, weight, &bias), {.chosen = 2});
    return add(y, combine_tokens(grouped_linear(gather_tokens(y, routing), weight, &bias, routing), routing));
  });
}

/// A micro-batch of a chain, and then body(runtime, model), on two ranks. As copies: what ranks share cannot be filled
/// for one op alone. Not on one rank only: an audit runs an op as often as it has buffers, and there the ranks have
/// different ones.
template <class Body>
Names audit_micro_batch(const ShardOptions& options, const Body& body, bool in_backward = false) {
  Names ops;
  std::vector<std::string> findings;
  std::mutex mutex;
  run_local_world(2, {.timeout_s = 60}, [&](World& world) {
    AuditDevice device(std::int64_t{1} << 20, world.rank());
    {
      Context context(device);
      Chain model;
      ShardedRuntime runtime(context, world, options);
      shard_module(model, runtime, Units::block);
      std::optional<AdamW> optimizer;  // it updates in backward
      if (in_backward) optimizer.emplace(runtime.executor(), AdamWConfig{.clip = 0, .in_backward = true});
      if (optimizer) optimizer->begin_step(0.01f);
      runtime.begin_micro_batch(Mode::train, true);
      backward(model.loss(chain_input(context, world.rank(), options.precision.param), chain_targets(context)));
      runtime.end_micro_batch();
      if (optimizer) optimizer->end_step();
      body(runtime, model);
    }
    const std::lock_guard lock(mutex);
    ops.insert(device.audited().begin(), device.audited().end());
    for (const std::string& finding : device.findings()) {
      // Rows are alike when all are changed alike; and what a report reads it only prints.
      if (!finding.starts_with("'compare_ranks'") && !finding.starts_with("'report_")) findings.push_back(finding);
    }
  });
  CHECK(fmt::format("{}", fmt::join(findings, "; ")) == "");
  return ops;
}

/// Gradients that are clipped before the step, by a norm that is far above the limit.
Names audit_clipping() {
  return audit_micro_batch({.zero_copy = false}, [](ShardedRuntime& runtime, const Chain&) {
    clip_grad_norm(runtime.executor(), 1e-6f, {.power = 3});
    ParameterNorms(runtime.executor()).measure([](std::size_t, std::size_t) { return true; });
  });
}

Names audit_in_backward() {
  return audit_micro_batch(
      {.zero_copy = false}, [](ShardedRuntime&, const Chain&) {}, true);
}

/// Parameters and gradients made whole, written back and looked at.
Names audit_writing(Layout layout) {
  const std::int64_t whole_bytes = layout == Layout::flat ? 0 : 100;  // the biases
  const ShardOptions options{.precision = {.param = DType::bf16},
                             .layout = {.layout = layout, .min_shard_bytes = whole_bytes},
                             .zero_copy = false};
  return audit_micro_batch(options, [](ShardedRuntime& runtime, const Chain& model) {
    for (const UnshardOptions& unshard :
         {UnshardOptions{.with_gradients = true}, UnshardOptions{.writes_back = false, .with_gradients = true},
          UnshardOptions{.on_host = true, .with_gradients = true}})
      const UnshardScope scope(runtime, model, unshard);
  });
}

/// The state loaded by name, on one rank: what a broadcast's root reads an audit cannot see.
Names audit_loading() {
  const auto world = make_single_world({.timeout_s = 60});
  AuditDevice device(std::int64_t{1} << 20);
  {
    Context context(device);
    Chain model;
    ShardedRuntime runtime(context, *world, {});
    shard_module(model, runtime, Units::block);
    AdamW optimizer(runtime.executor(), {});
    const TrainingState state{*world, runtime.executor(), optimizer};
    load_by_name(state, state_by_name(state, {.whole = true, .on_host = true}));
    Muon muon(runtime.executor(), {});  // whose moments not all parameters have
    const TrainingState of_some{*world, runtime.executor(), muon};
    load_by_name(of_some, state_by_name(of_some, {.whole = true, .on_host = true}));
  }
  for (const std::string& finding : device.findings()) {
    CAPTURE(finding);
    CHECK((finding.starts_with("'load_state'") || finding.starts_with("'given_state'")) == false);
  }
  return device.audited();
}

}  // namespace

TEST_CASE("every op of a step reads and writes what it declares, all of it and nothing else") {
  const int variant = GENERATE(range(0, 13));
  Config config = small_config();
  if (variant == 1) config.precision.param = config.precision.reduce = "bf16";
  if (variant == 2) config.train.deterministic = false;
  if (variant == 3) config.train.recompute = {"block"};
  if (variant == 4)
    config.train.recompute = {"attention"}, config.model.activation = "gelu_erf",
    config.shard.reduce_every_micro_batch = false;
  if (variant == 5) choose_layout(config, "last dim");
  if (variant == 6) choose_layout(config, "small whole"), config.precision.param = "bf16";
  if (variant == 7) choose_narrow_sums(config);
  if (variant >= 8) choose_family(config, variant < 10 ? "llama" : variant < 12 ? "qwen3" : "gpt_oss");
  if (variant == 9 || variant == 11) choose_narrow_sums(config), config.precision.rounding = "stochastic";
  CAPTURE(variant);
  Audit audit = audit_training(config);
  // The rows of one token, as a text has them, are its own in whatever order.
  std::erase(audit.findings, "'gather_tokens' declares as read, and does not read, buffer 1");
  CHECK(fmt::format("{}", fmt::join(audit.findings, "; ")) == "");
}

TEST_CASE("the audit meets every op of the library and the trainer") {
  Names seen = audit_the_rest();
  seen.merge(audit_mixture());
  seen.merge(audit_clipping());
  seen.merge(audit_in_backward());
  seen.merge(audit_loading());
  seen.merge(audit_copying());
  for (const DType dtype : {DType::f32, DType::bf16}) seen.merge(audit_general_ops(dtype));
  for (const Layout layout : {Layout::flat, Layout::per_parameter}) seen.merge(audit_writing(layout));
  for (const bool deterministic : {true, false}) {
    Config config = small_config();
    config.train.deterministic = deterministic;
    if (!deterministic) config.precision.param = "bf16";
    seen.merge(audit_training(config).ops);
  }
  Config graph = small_config();
  graph.cuda.graph = true;  // whose steps are fed otherwise, here too
  const Audit fed = audit_training(graph, 1);
  for (const std::string& finding : fed.findings) {  // one rank, as it must be, has nobody to exchange anything with
    CHECK((finding.starts_with("'all_reduce' declares as written") ||
           finding.starts_with("'all_gather' declares as written")));
  }
  seen.insert(fed.ops.begin(), fed.ops.end());
  Config compute_copy = small_config();
  choose_narrow_sums(compute_copy);
  choose_family(compute_copy, "llama");
  seen.merge(audit_training(compute_copy).ops);
  for (const char* const family : {"llama", "qwen3", "qwen3_moe", "gemma3", "gpt_oss"}) {
    Config config = small_config();
    choose_family(config, family);
    seen.merge(audit_training(config).ops);
  }
  Config muon = small_config();
  muon.train.optimizer = "muon";
  muon.train.muon = {"blocks.*.weight"};
  seen.merge(audit_training(muon).ops);
  Config encoded = small_config();
  encoded.train.deterministic = false;
  encoded.shard.compress_gather = "fp8";
  const Audit sent = audit_training(encoded);
  CHECK(fmt::format("{}", fmt::join(sent.findings, "; ")) == "");
  seen.insert(sent.ops.begin(), sent.ops.end());
  Config adamw8bit = small_config();
  adamw8bit.train.optimizer = "adamw8bit";
  adamw8bit.precision.param = "bf16";
  seen.merge(audit_training(adamw8bit).ops);
  Config averaged = small_config();
  averaged.train.average = 0.9;
  averaged.run.validate_average = true;
  averaged.run.lost_updates_every = 1;
  averaged.precision.param = "bf16";
  seen.merge(audit_training(averaged).ops);
  Config schedule_free = small_config();
  schedule_free.train.optimizer = "schedule_free_adamw";
  schedule_free.train.schedule = "constant";
  seen.merge(audit_training(schedule_free).ops);
  Config kept = small_config();
  kept.offload.moments = "host";
  const Audit left = audit_training(kept);
  CHECK(fmt::format("{}", fmt::join(left.findings, "; ")) == "");
  seen.insert(left.ops.begin(), left.ops.end());
  kept.offload.weights = kept.offload.gradients = kept.offload.update = "host";
  kept.precision.param = "bf16";
  const Audit by_host = audit_training(kept);
  CHECK(fmt::format("{}", fmt::join(by_host.findings, "; ")) == "");
  CHECK(by_host.ops.count("adamw_on_host") == 1);
  Config frozen = small_config();
  frozen.train.frozen = {"blocks.0.mlp"};
  frozen.precision.frozen = "bf16";
  const Audit held_once = audit_training(frozen);
  CHECK(fmt::format("{}", fmt::join(held_once.findings, "; ")) == "");
  seen.insert(held_once.ops.begin(), held_once.ops.end());
  frozen.precision.quantize = "nf4";
  const Audit quantized = audit_training(frozen);
  CHECK(fmt::format("{}", fmt::join(quantized.findings, "; ")) == "");
  CHECK(quantized.ops.count("decode") == 1);
  Config adapted = small_config();
  adapted.lora = {.rank = 2, .alpha = 2, .dora = true, .targets = {"c_attn", "c_proj"}, .dropout = 0.5};
  adapted.precision.param = "bf16";
  const Audit magnitudes = audit_training(adapted);
  for (const std::string& finding : magnitudes.findings) {
    CAPTURE(finding);  // B is zero at first, and what is multiplied with it as if it were not read
    CHECK(finding.find("declares as read, and does not") != finding.npos);
  }
  seen.insert(magnitudes.ops.begin(), magnitudes.ops.end());
  Config in_parts = small_config();
  in_parts.train.deterministic = false;
  in_parts.tensor.parallel = 2;
  in_parts.model.vocab = 250;  // both ranks have some of it
  const Audit parts = audit_training(in_parts);
  for (const std::string& finding : parts.findings) {
    CAPTURE(finding);  // hashes that are changed are not alike; a rank does not read what it has no rows of
    CHECK((finding.starts_with("'compare_inputs'") || finding.find("declares as read, and does not") != finding.npos));
  }
  seen.insert(parts.ops.begin(), parts.ops.end());
  Config weighed = small_config();
  weighed.data.has_ignored_targets = true;
  seen.merge(audit_training(weighed).ops);
  for (const std::string scheme : {"hsdp small each", "nested", "zero3 k", "zero3 k one by one"}) {
    Config config = small_config();
    if (scheme == "zero3 k one by one") choose_layout(config, "small whole");
    config.train.deterministic = false;
    config.train.global_batch = 8;
    choose_scheme(config, scheme_of(scheme.substr(0, scheme.find(" one")), 4));
    const Audit audit = audit_training(config, 4);
    CAPTURE(scheme);
    CHECK(fmt::format("{}", fmt::join(audit.findings, "; ")) == "");
    seen.insert(audit.ops.begin(), audit.ops.end());
  }
  for (const std::string& name : names_in_sources()) {
    // Of race-check mode alone; of what ranks share, which no op can be given alone; read by a broadcast's root.
    if (name == "withdraw" || name == "copy_masters" || name == "seed") continue;
    if (exchange_ops().contains(name)) continue;                                 // expert_exchange_audit_test
    if (name == "linear_dx_gelu" || name == "cross_entropy_in_place") continue;  // GPUs': cuda_gelu_test, loss_test
    // Of a file, whose addresses nothing backs: disk_residence_test.
    if (name == "read_from_disk" || name == "write_to_disk") continue;
    if (name == "gradient_facts") continue;                          // a replay's: replay_test
    if (name == "buffer" || name == "running_statistics") continue;  // a value that is no unit's: conv_net_test
    CAPTURE(name);
    CHECK(seen.count(name) == 1);
  }
  CHECK(names_in_sources().size() > 25);
  for (const char* name :
       {"all_gather", "reduce_scatter", "all_reduce", "linear", "layer_norm", "add_layer_norm", "layer_norm_backward",
        "rms_norm", "add_rms_norm", "rms_norm_backward", "swiglu", "swiglu_backward", "geglu", "geglu_backward"})
    CHECK(seen.count(name) == 1);
}

}  // namespace zs::test::declaration_audit_test
