#include "tests/shard/tiny_training.h"

#include <cstdlib>

#include "model/families/family.h"
#include "model/train/plan/plan.h"
#include "model/train/run_dir/weights.h"
#include "runtime/base/random.h"
#include "runtime/device/step_verifier.h"
#include "tests/shard/zero_copy_asked.h"

namespace zs::test {

SampleBatch empty_batch(const Config& config) {
  const std::vector<std::int32_t> zeros(static_cast<std::size_t>(config.train.micro_batch * config.train.sequence));
  return {zeros, zeros};
}

ReadSamples tiny_samples(const Config& config) {
  return [&config](std::int64_t first) {
    const CounterRng rng(7);
    SampleBatch batch = empty_batch(config);
    for (std::size_t i = 0; i < batch.inputs.size(); ++i) {
      const auto token = static_cast<std::uint64_t>(first * config.train.sequence) + i;
      const auto input = static_cast<std::int32_t>(rng.bits(token) % static_cast<std::uint64_t>(config.model.vocab));
      batch.inputs[i] = input;
      batch.targets[i] = static_cast<std::int32_t>((input * 3 + 1) % config.model.vocab);
    }
    return batch;
  };
}

std::uint64_t perturb_seed_of_environment() {
  const char* const seed = std::getenv("ZSHARD_TEST_PERTURB");
  return seed == nullptr ? 0 : std::strtoull(seed, nullptr, 10);
}

Config tiny_config() {
  Config config;
  config.shard.zero_copy = zero_copy_in_tests(false) ? "auto" : "off";
  config.name = "tiny";
  config.model.layers = 3;
  config.model.heads = 2;
  config.model.width = 32;
  config.model.context = 16;
  config.model.vocab = 61;
  config.train.steps = 3;
  config.train.global_batch = 24;
  config.train.micro_batch = 1;
  config.train.sequence = 16;
  config.train.deterministic = true;
  return config;
}

void choose_family(Config& config, const std::string& name) {
  const Family& family = family_named(name);
  config.model.family = name;
  config.model.norm_eps = family.defaults.norm_eps;
  if (!family.has("model.kv_heads")) return;
  config.model.kv_heads = 1;
  config.model.hidden = 40;
  config.model.tied_head = false;
  if (family.has("model.window")) config.model.window = 5;
  if (family.defaults.head_dim > 0) config.model.head_dim = 24;
  if (!family.has("model.experts")) return;
  config.model.experts = 5;
  config.model.experts_per_token = 2;
  config.model.balance_loss = 0.1;
  config.model.z_loss = 0.01;
  if (family.has("model.dense_layers")) config.model.dense_layers = {1};
}

void choose_scheme(Config& config, const SchemeOptions& scheme) {
  config.shard.strategy = name_of(scheme.strategy);
  config.shard.group_size = scheme.group_size;
  config.shard.reshard_after_forward = scheme.reshard_after_forward;
  config.shard.reduce_every_micro_batch = scheme.reduce_every_micro_batch;
  config.shard.all_reduce_every_micro_batch = scheme.all_reduce_every_micro_batch;
}

const std::vector<std::string>& layout_names() {
  static const std::vector<std::string> names = {"flat", "zero-copy", "per_parameter", "last dim", "small whole"};
  return names;
}

void choose_layout(Config& config, const std::string& name) {
  constexpr std::int64_t kAboveVectors = 1000;  // bytes: the longest vector of tiny_config has 128 elements
  config.shard.layout = name == "flat" || name == "zero-copy" ? "flat" : "per_parameter";
  config.shard.zero_copy = name == "zero-copy" ? "auto" : "off";
  if (name == "last dim" || name == "small whole") config.shard.dims = {"*=-1"};
  if (name == "small whole") config.shard.min_shard_bytes = kAboveVectors;
}

TinyResult train_tiny(World& world, const Config& config, const TinyOptions& options) {
  const std::uint64_t seed =
      options.is_calm || options.perturb_seed != 0 ? options.perturb_seed : perturb_seed_of_environment();
  const DeviceOptions device_options{
      .threads = options.threads, .cpus = {}, .sync_timeout_s = 120, .perturb_seed = seed};
  if (!options.follows_plan)
    return train_tiny(world, *Device::create(DeviceKind::cpu, device_options), nullptr, config, options);
  const TrainPlan plan = make_plan(config, {.rank = world.rank(), .ranks = world.size(), .threads = options.threads});
  return train_tiny(world, *plan.create_device(device_options), &plan, config, options);
}

TinyResult train_tiny(World& world, Device& device, const TrainPlan* plan, const Config& config,
                      const TinyOptions& options) {
  StepVerifier verifier(device);
  Session session(device, world, config);
  if (plan != nullptr) plan->apply_order(session.runtime());
  TinyResult result;
  const TrainingState state{world, session.runtime().executor(), session.optimizer()};
  const std::int64_t done = options.resume.empty() ? 0 : load(state, options.resume).step;
  for (std::int64_t step = done + 1; step <= options.steps; ++step) {
    const std::ptrdiff_t before = std::ssize(device.trace().entries());  // blocks that live on
    const ShardGroups::Sent sent = session.runtime().executor().groups().sent();
    session.enqueue_step(step, 1e-2f, tiny_samples(config), false);
    const StepResult outcome = session.finish_step();
    if (step == options.steps)
      result.trace.assign(device.trace().entries().begin() + before, device.trace().entries().end());
    verifier.check(fmt::format("step {}", step));
    result.sent = session.runtime().executor().groups().sent().since(sent);
    result.losses.insert(result.losses.end(), outcome.losses.begin(), outcome.losses.end());
    result.grad_norms.push_back(outcome.grad_norm);
    result.peak_bytes.push_back(outcome.peak_bytes);
    result.host_bytes.push_back(outcome.host_bytes);
    result.allocations.push_back(outcome.allocations);
    if (!options.checkpoints.empty())
      result.saved =
          save(state, options.checkpoints, {.step = step, .attributes = {{"a key", "a value"}}}, options.watch);
    if (config.run.validate_every > 0 && step % config.run.validate_every == 0) session.validate(tiny_samples(config));
    verifier.check(fmt::format("the validation after step {}", step));
  }
  result.weights = save_weights(session.runtime().executor());
  result.reserved_bytes = device.memory().reserved_bytes();
  result.allocation_calls = device.memory().allocation_calls();
  return result;
}

TinyResult train_tiny(const Config& config, const TinyOptions& options) {
  if (options.ranks == 1) return train_tiny(*make_single_world({.timeout_s = 60}), config, options);
  TinyResult first;
  run_local_world(options.ranks, {.timeout_s = 60}, [&](World& world) {
    TinyResult result = train_tiny(world, config, options);
    if (world.rank() == 0) first = std::move(result);  // the only writer; read after every rank has ended
  });
  return first;
}

}  // namespace zs::test
