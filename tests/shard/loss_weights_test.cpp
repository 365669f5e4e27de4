// Steps in which some targets count for nothing, against sequences that end where their targets stop counting: the same
// to a model that sees no later token, by code that knows no weights.
#include <catch2/catch.hpp>

#include <array>
#include <numeric>

#include "runtime/shard/execute/sum_over_ranks.h"
#include "runtime/shard/optimizers/sgd.h"
#include "runtime/tensor/arithmetic.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/named_weights.h"
#include "tests/shard/tiny_training.h"

namespace zs::test::loss_weights_test {
namespace {

constexpr float kLr = 0.5f;

/// Of a sample: its first targets count. Of some none does.
std::int64_t counted(std::int64_t sample) { return sample * 7 % 17; }

Config masked_config(const std::string& loss, std::int64_t micro_batch) {
  Config config = tiny_config();
  config.train.optimizer = "sgd";
  config.train.weight_decay = config.train.clip = 0;
  config.train.loss = loss;
  config.train.micro_batch = micro_batch;
  config.data.has_ignored_targets = true;
  config.run.validate_every = config.run.validate_batches = 1;
  return config;
}

ReadSamples masked_samples(const Config& config) {
  return [&config, whole = tiny_samples(config)](std::int64_t first) {
    SampleBatch batch = whole(first);
    for (std::size_t i = 0; i < batch.targets.size(); ++i) {
      const auto place = static_cast<std::int64_t>(i);
      if (place % config.train.sequence >= counted(first + place / config.train.sequence))
        batch.targets[i] = kIgnoredTarget;
    }
    return batch;
  };
}

ReadSamples without_targets(const Config& config) {
  return [whole = tiny_samples(config)](std::int64_t first) {
    SampleBatch batch = whole(first);
    std::fill(batch.targets.begin(), batch.targets.end(), kIgnoredTarget);
    return batch;
  };
}

struct Trained {
  double loss = 0, validation = 0;
  Weights weights;
};

Trained train_masked(World& world, const Config& config) {
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Session session(*device, world, config);
  Trained trained;
  trained.validation = session.validate(masked_samples(config), 23);  // the last micro-batch may be a part of one
  session.enqueue_step(1, kLr, masked_samples(config), 0);
  const std::vector<float> losses = session.finish_step().losses;
  trained.loss = std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
  trained.weights = weights_of(session.runtime().executor());
  return trained;
}

/// The share of a sample's mean loss in that of samples [0, count).
double share_of(const std::string& loss, std::int64_t sample, std::int64_t count) {
  std::int64_t tokens = 0, sequences = 0;
  for (std::int64_t i = 0; i < count; ++i) tokens += counted(i), sequences += counted(i) > 0 ? 1 : 0;
  return loss == "tokens" ? static_cast<double>(counted(sample)) / static_cast<double>(tokens)
                          : 1.0 / static_cast<double>(sequences);
}

Trained train_cut(World& world, Config config) {
  config.train.micro_batch = 1;
  config.data.has_ignored_targets = false;
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Session session(*device, world, config);
  ShardedRuntime& runtime = session.runtime();
  Trained trained;
  const std::int64_t samples = config.train.global_batch;
  for (std::int64_t sample = 0; sample < samples; ++sample) {
    const std::int64_t length = counted(sample);
    if (length == 0) continue;
    auto [inputs, targets, lengths] = tiny_samples(config)(sample);
    inputs.resize(static_cast<std::size_t>(length)), targets.resize(inputs.size());
    Context& context = runtime.context();
    runtime.begin_micro_batch(Mode::train, sample + 1 == samples);
    const Tensor loss = session.model().loss(Tensor::from_host(context, {1, length}, inputs),
                                             Tensor::from_host(context, {1, length}, targets));
    backward(loss, static_cast<float>(share_of(config.train.loss, sample, samples)));
    runtime.end_micro_batch();
    const auto value = static_cast<double>(loss.to_host()[0]);
    trained.loss += value * share_of(config.train.loss, sample, samples);
    if (sample < 23) trained.validation += value * share_of(config.train.loss, sample, 23);
  }
  session.optimizer().step(kLr);
  trained.weights = weights_of(runtime.executor());
  return trained;
}

std::string differs(const Trained& trained, const Trained& expected) {
  if (trained.loss != Approx(expected.loss).epsilon(1e-5)) return fmt::format("loss {}", trained.loss);
  if (trained.validation != Approx(expected.validation).epsilon(1e-5))
    return fmt::format("validation {}", trained.validation);
  for (const auto& [name, values] : expected.weights) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float own = trained.weights.at(name)[i];
      if (own != Approx(values[i]).epsilon(1e-4).margin(2e-6))
        return fmt::format("{}[{}]: {} {}", name, i, own, values[i]);
    }
  }
  return "";
}

}  // namespace

TEST_CASE("a step of which no target counts updates nothing, whatever the optimizer, and the next one goes on") {
  const std::string optimizer = GENERATE(as<std::string>{}, "adamw", "adamw8bit", "lion", "muon", "sgd");
  CAPTURE(optimizer);
  Config config = masked_config("tokens", 2);
  config.train.optimizer = optimizer;
  config.train.weight_decay = 0.25;
  config.train.average = 0.5;
  config.train.muon = {"blocks.*"};
  const ReadSamples none = without_targets(config);
  const auto is_kept = on_ranks(2, [&](World& world) {
    const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
    Session session(*device, world, config);
    const auto go = [&](std::int64_t step, const ReadSamples& read) {
      session.enqueue_step(step, 0.01f, read, 0);
      (void)session.finish_step();
      Weights all = weights_of(session.runtime().executor());
      session.optimizer().swap_average();
      for (const auto& [name, values] : weights_of(session.runtime().executor())) all["average " + name] = values;
      session.optimizer().swap_average();
      return all;
    };
    const Weights first = go(1, masked_samples(config)), second = go(2, none), third = go(3, masked_samples(config));
    return std::array{first == second, second != third, session.optimizer().skipped() == 1};
  });
  for (const auto& kept : is_kept) CHECK(kept == std::array{true, true, true});
}

TEST_CASE("0-39: each target that counts weighs alike, or each sequence, however they are spread") {
  const std::string loss = GENERATE(as<std::string>{}, "tokens", "sequences");
  CAPTURE(loss);
  REQUIRE(counted(23) > 0);
  const Trained expected = on_ranks(1, [&](World& world) { return train_cut(world, masked_config(loss, 1)); })[0];
  Trained first;
  for (const int ranks : {1, 2, 3, 4, 5}) {  // 5 do not divide the micro-batches: some ranks have none at the end
    for (const std::int64_t micro_batch : {1, 2}) {
      CAPTURE(ranks, micro_batch);
      const Config config = masked_config(loss, micro_batch);
      const Trained trained = on_ranks(ranks, [&](World& world) { return train_masked(world, config); })[0];
      CHECK(differs(trained, expected) == "");
      if (micro_batch != 1) continue;
      if (ranks == 1) first = trained;
      CHECK((trained.weights == first.weights && trained.loss == first.loss));  // bit for bit
    }
  }
}

TEST_CASE("0-39: where every target counts, weights change no bit") {
  Config config = tiny_config();
  const int ranks = GENERATE(1, 3);
  config.train.loss = GENERATE(as<std::string>{}, "tokens", "sequences");
  const TinyResult plain = train_tiny(config, {.ranks = ranks});
  config.data.has_ignored_targets = true;
  const TinyResult weighed = train_tiny(config, {.ranks = ranks});
  CHECK((weighed.weights == plain.weights && weighed.losses == plain.losses && weighed.grad_norms == plain.grad_norms));
}

TEST_CASE("a step in which no target counts has no loss, and teaches nothing") {
  const Config config = masked_config("tokens", 1);
  const auto [losses, is_same] = on_ranks(2, [&](World& world) {
    const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
    Session session(*device, world, config);
    const auto before = weights_of(session.runtime().executor());
    session.enqueue_step(1, kLr, without_targets(config), 0);
    const std::vector<float> found = session.finish_step().losses;
    return std::pair(found, weights_of(session.runtime().executor()) == before);
  })[1];
  CHECK(losses == std::vector<float>(24, 0.0f));
  CHECK(is_same);
}

TEST_CASE("0-39: a trainer of one's own divides by what counts on all ranks") {
  const auto trained_by = [](int ranks) {
    return on_ranks(ranks, [&](World& world) {
      ChainRun run(world, {.division = {Division::Rule::none}});
      Context& context = run.context;
      // Six samples of 1 to 6 targets that count, dealt to the ranks unevenly: the first has the most.
      std::vector<std::vector<int>> dealt(static_cast<std::size_t>(world.size()));
      for (int sample = 0; sample < 6; ++sample)
        dealt[static_cast<std::size_t>(std::max(0, sample - 6 + world.size()))].push_back(sample);
      const std::vector<int>& own = dealt[static_cast<std::size_t>(world.rank())];
      float count = 0;
      for (const int sample : own) count += static_cast<float>(sample + 1);
      const Tensor counts = sum_over_ranks(run.runtime.executor(), Tensor::from_host(context, {1}, std::vector{count}));
      const int most = 6 - world.size() + 1;
      for (int i = 0; i < most; ++i) {  // a rank that has none left takes part with nothing that counts
        const int sample = i < static_cast<int>(own.size()) ? own[static_cast<std::size_t>(i)] : -1;
        std::vector<std::int32_t> labels(kChainRows, kIgnoredTarget);
        for (int row = 0; row <= sample; ++row) labels[static_cast<std::size_t>(row)] = row;
        run.runtime.begin_micro_batch(Mode::train, i + 1 == most);
        const Tensor mean = [&] {
          const ForwardScope scope(&run.runtime, 0);
          Tensor y = linear(chain_input(context, std::max(sample, 0)), run.model.head, nullptr);
          for (const auto& layer : run.model.layers) y = layer->forward(y);
          return cross_entropy(linear(y, run.model.head, nullptr), Tensor::from_host(context, {kChainRows}, labels),
                               {.ignored = kIgnoredTarget});
        }();
        backward(mean * static_cast<float>(sample + 1) / counts.reshape({}));
        run.runtime.end_micro_batch();
      }
      Sgd(run.runtime.executor(), {}).step(0.5f);
      return run.weights();
    })[0];
  };
  const auto alone = trained_by(1);
  for (const int ranks : {2, 3, 4}) {
    const auto weights = trained_by(ranks);
    for (std::size_t i = 0; i < alone.size(); ++i)
      for (std::size_t k = 0; k < alone[i].size(); ++k) CHECK(weights[i][k] == Approx(alone[i][k]).margin(1e-5));
  }
}

}  // namespace zs::test::loss_weights_test
