// The examples of the documentation against what PyTorch computes in f64 from the same weights and data
// (tests/data/examples/make_values.py): over ranks, strategies and checkpoints.
#include <catch2/catch.hpp>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "tests/examples/examples_of_docs.h"
#include "tests/examples/formulas.h"
#include "tests/model/temp_dir.h"

namespace zs::test::examples_test {
namespace {

constexpr std::int64_t kSteps = 20, kEvaluation = 1000;
/// Of f32 sums in other orders, through 20 steps.
constexpr double kTolerance = 1e-5;
/// Of an evaluation that has a bias in front of a batch norm: its gradient is rounding alone, which AdamW scales up.
/// Training takes the bias away again, and an evaluation takes away what it was some steps ago.
constexpr double kBiasTolerance = 2e-4;

/// One rank's, in one run.
struct Place {
  Job& job;
  SchemeOptions scheme;
  std::string folder;  // of weights and checkpoints

  FullyShardOptions options() const { return {.shard = {.scheme = scheme, .seed = 1}}; }
  /// This rank's part of a step's global batch.
  Tensor numbers(const char* name, std::vector<std::int64_t> dims, std::int64_t step) const {
    std::vector<float> values;
    for_each(dims, step, [&](std::int64_t i) { values.push_back(plain(name, i)); });
    return Tensor::from_host(job.context, Shape(std::span<const std::int64_t>(dims)), values);
  }
  Tensor choices(const char* name, std::vector<std::int64_t> dims, std::int64_t step, std::uint32_t of) const {
    std::vector<std::int32_t> values;
    for_each(dims, step, [&](std::int64_t i) { values.push_back(static_cast<std::int32_t>(hash_of(name, i) % of)); });
    return Tensor::from_host(job.context, Shape(std::span<const std::int64_t>(dims)), values);
  }

 private:
  /// The elements of a part; dims become the part's.
  void for_each(std::vector<std::int64_t>& dims, std::int64_t step, const std::function<void(std::int64_t)>& f) const {
    dims[0] /= job.ranks();
    std::int64_t count = 1;
    for (const std::int64_t dim : dims) count *= dim;
    for (std::int64_t i = 0; i < count; ++i) f((step * job.ranks() + job.rank()) * count + i);
  }
};

using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(Executor& executor)>;
MakeOptimizer adamw(const AdamWConfig& config) {
  return [config](Executor& executor) { return std::make_unique<AdamW>(executor, config); };
}

/// A model with first values, sharded, and its optimizer.
template <class Net>
struct Trained {
  template <class... Args>
  Trained(const Place& place, const std::string& name, float rate, const MakeOptimizer& make, Args... args)
      : net(args...), model(fully_shard(net, place.job, place.options())), lr(rate), path(place.folder + "/" + name) {
    together(place.job.world, [&] {
      if (place.job.is_first()) write_first_values(net, path);
    });
    // Buffers are not in the file.
    const auto report = load_safetensors(place.job.world, model.runtime(), path, {.strict = false});
    for (const std::string& missing : report.missing)
      if (missing.find("running") == std::string::npos) throw UsageError("no value for " + missing);
    if constexpr (std::is_same_v<Net, fine_tune::Regressor>)
      for (const auto& parameter : net.in.own_parameters()) parameter->set_trainable(false);
    optimizer = make(model);
  }

  /// The mean loss of all ranks.
  double step(const std::function<Tensor()>& loss_of) {
    auto micro_batch = model.micro_batch();
    const Tensor loss = loss_of();
    loss.backward();
    micro_batch.end();
    optimizer->step(lr);
    return model.runtime().mean_over_ranks(static_cast<double>(loss.to_host()[0]));
  }
  double evaluate(const std::function<Tensor()>& loss_of) {
    auto evaluation = model.evaluation();
    return model.runtime().mean_over_ranks(static_cast<double>(loss_of().to_host()[0]));
  }
  void save(World& world, std::int64_t step) {
    zs::save({world, model, *optimizer}, path + "-checkpoints", {.step = step});
  }
  void load(World& world, std::int64_t step) {
    zs::load({world, model, *optimizer}, step_folder(path + "-checkpoints", step));
  }

  Net net;
  ShardedModel model;
  float lr;
  std::string path;
  std::unique_ptr<Optimizer> optimizer;
};

/// One model with a loss of a step's batch.
template <class Net>
struct OneModel {
  using Loss = std::function<Tensor(Net& net, const Place& place, std::int64_t step)>;
  template <class... Args>
  OneModel(const Place& in, float lr, const MakeOptimizer& make, Loss loss_of_step, Args... args)
      : place(in), trained(in, "net", lr, make, args...), loss(std::move(loss_of_step)) {}

  double step(std::int64_t number) {
    return trained.step([&] { return loss(trained.net, place, number); });
  }
  double evaluate() {
    return trained.evaluate([&] { return loss(trained.net, place, kEvaluation); });
  }
  void save(std::int64_t number) { trained.save(place.job.world, number); }
  void load(std::int64_t number) { trained.load(place.job.world, number); }

  const Place& place;
  Trained<Net> trained;
  Loss loss;
};

struct MlpClassifier : OneModel<mlp_classifier::Classifier> {
  explicit MlpClassifier(const Place& in)
      : OneModel(in, 0.01f, adamw({.weight_decay = 0.01f}), [](auto& net, const Place& place, std::int64_t step) {
          return cross_entropy(net(place.numbers("places", {48, 2}, step)), place.choices("arms", {48}, step, 3));
        }) {}
};

struct FineTune : OneModel<fine_tune::Regressor> {
  explicit FineTune(const Place& in)
      : OneModel(in, 0.01f, adamw({.groups = {{.pattern = "middle.*", .lr_scale = 0.1f}}}),
                 [](auto& net, const Place& place, std::int64_t step) {
                   return mse(net(place.numbers("places", {48, 2}, step)), place.numbers("distances", {48, 1}, step));
                 }) {}
};

struct ConvNet : OneModel<conv_net::ConvNet> {
  explicit ConvNet(const Place& in)
      : OneModel(in, 0.01f, adamw({.weight_decay = 0.01f}), [](auto& net, const Place& place, std::int64_t step) {
          return cross_entropy(net(place.numbers("pixels", {24, 1, 12, 12}, step)),
                               place.choices("kinds", {24}, step, 3));
        }) {}
};

struct Lstm : OneModel<lstm::Net> {
  explicit Lstm(const Place& in)
      : OneModel(in, 0.01f, adamw({.weight_decay = 0, .clip = 1}),
                 [](auto& net, const Place& place, std::int64_t step) {
                   return cross_entropy(net(place.choices("ids", {8, 24}, step, 128)),
                                        place.choices("next", {8, 24}, step, 128));
                 }) {}
};

struct CustomTrainer : OneModel<custom_trainer::Model> {
  explicit CustomTrainer(const Place& in)
      : OneModel(in, 0.05f, adamw({}), [](auto& net, const Place& place, std::int64_t step) {
          const std::int64_t rows = 32 * place.job.ranks();
          return net(place.numbers("rows", {rows, 32}, step), place.choices("ids", {rows}, step, 32));
        }) {}
};

struct CustomOp : OneModel<custom_op::Wave> {
  explicit CustomOp(const Place& in)
      : OneModel(in, 0.01f, adamw({.weight_decay = 0}), [](auto& net, const Place& place, std::int64_t step) {
          return mse(net(place.numbers("places", {48, 1}, step)), place.numbers("heights", {48, 1}, step));
        }) {}
};

struct OwnOptimizer : OneModel<own_optimizer::Net> {
  explicit OwnOptimizer(const Place& in)
      : OneModel(
            in, 0.1f, [](Executor& executor) { return std::make_unique<own_optimizer::Adagrad>(executor); },
            [](auto& net, const Place& place, std::int64_t step) {
              return cross_entropy(net(place.numbers("places", {48, 2}, step)), place.choices("kinds", {48}, step, 2));
            }) {}
};

struct VisionTransformer : OneModel<vision_transformer::VisionTransformer> {
  explicit VisionTransformer(const Place& in)
      : OneModel(in, 0.003f, adamw({}), [](auto& net, const Place& place, std::int64_t step) {
          return cross_entropy(net(place.numbers("pixels", {8, 1, 16, 16}, step)),
                               place.choices("kinds", {8}, step, 4));
        }) {}
};

struct LanguageModel : OneModel<language_model::Gpt> {
  explicit LanguageModel(const Place& in)
      : OneModel(
            in, 0.003f, adamw({}),
            [](auto& net, const Place& place, std::int64_t step) {
              const std::vector<std::int64_t> dims{8, language_model::kTime};
              return net(place.choices("ids", dims, step, kVocab), place.choices("next", dims, step, kVocab));
            },
            kVocab) {}
  static constexpr std::int64_t kVocab = 256;
};

/// As in the example: the critic learns, then the generator from the critic. The losses are the generator's.
struct TwoModels {
  explicit TwoModels(const Place& in)
      : place(in),
        generator(in, "generator", 5e-3f, adamw({.beta1 = 0.5f}), two_models::kNoise, 2),
        critic(in, "critic", 5e-3f, adamw({.beta1 = 0.5f}), 2, 1) {}

  Tensor noise(std::int64_t number) const { return place.numbers("noise", {16, 4}, number); }
  double step(std::int64_t number) {
    auto generating = generator.model.micro_batch();
    const Tensor made = generator.net(noise(number)), real = place.numbers("circle", {16, 2}, number);
    critic.step(
        [&] { return two_models::surprise(critic.net(real)) + two_models::surprise(-critic.net(made.detach())); });
    auto deceiving = critic.model.micro_batch();
    const Tensor loss = two_models::surprise(critic.net(made));
    loss.backward();
    deceiving.end();
    critic.model.runtime().abandon_step();
    generating.end();
    generator.optimizer->step(generator.lr);
    return generator.model.runtime().mean_over_ranks(static_cast<double>(loss.to_host()[0]));
  }
  double evaluate() {
    auto evaluation = critic.model.evaluation();
    return generator.evaluate([&] { return two_models::surprise(critic.net(generator.net(noise(kEvaluation)))); });
  }
  void save(std::int64_t number) {
    for (auto* trained : {&generator, &critic}) trained->save(place.job.world, number);
  }
  void load(std::int64_t number) {
    for (auto* trained : {&generator, &critic}) trained->load(place.job.world, number);
  }

  const Place& place;
  Trained<two_models::Net> generator, critic;
};

using Losses = std::vector<double>;

/// Steps [first, last) of an example over so many ranks, and behind the twentieth an evaluation. What it begins with,
/// if not with first values, and what it leaves, if not all steps are done, is in checkpoints in `folder`.
template <class Example>
Losses run_example(int ranks, Strategy strategy, const std::string& folder, std::int64_t first, std::int64_t last) {
  Losses losses;
  std::string program = "example";
  char* argv[] = {program.data(), nullptr};
  SchemeOptions scheme{.strategy = strategy};
  if (strategy == Strategy::hsdp) scheme.group_size = std::max(1, ranks / 2);
  const int code = run(1, argv,
                       [&](Job& job) {
                         const Place place{job, scheme, folder};
                         Example example(place);
                         if (first > 0) example.load(first);
                         Losses own;
                         for (std::int64_t step = first; step < last; ++step) own.push_back(example.step(step));
                         if (last < kSteps) {
                           example.save(last);
                         } else {
                           own.push_back(example.evaluate());
                         }
                         if (job.is_first()) losses = own;
                       },
                       {.timeout_s = 60, .threads = 1, .local_ranks = ranks});
  CHECK(code == 0);
  return losses;
}

Losses expected_of(const std::string& example, int first, int then) {
  std::ifstream file(ZSHARD_SOURCE_ROOT "/tests/data/examples/expected.json");
  const auto of = nlohmann::json::parse(file).at(example);
  const std::string ranks = fmt::format("{} {}", first, then);
  return of.at(of.contains("any") ? "any" : ranks).get<Losses>();
}

void check_alike(const Losses& losses, const Losses& expected, double of_evaluation) {
  REQUIRE(losses.size() == expected.size());
  for (std::size_t step = 0; step < losses.size(); ++step) {
    INFO("step " << step << ", an evaluation behind the last: " << losses[step] << " against " << expected[step]);
    const double tolerance = step < kSteps ? kTolerance : of_evaluation;
    CHECK(std::abs(losses[step] - expected[step]) <= tolerance * std::abs(expected[step]));
  }
}

template <class Example>
void check_example(const std::string& name, double of_evaluation = kTolerance) {
  for (const int ranks : {1, 2, 4}) {
    for (const Strategy strategy : {Strategy::zero3, Strategy::hsdp}) {
      CAPTURE(ranks, name_of(strategy));
      const TempDir folder;
      check_alike(run_example<Example>(ranks, strategy, folder.path(), 0, kSteps), expected_of(name, ranks, ranks),
                  of_evaluation);
    }
  }
  // Saved by some ranks, loaded by others.
  for (const auto& [before, behind] : {std::pair(2, 4), std::pair(4, 1)}) {
    CAPTURE(before, behind);
    const TempDir folder;
    Losses losses = run_example<Example>(before, Strategy::zero3, folder.path(), 0, kSteps / 2);
    for (const double loss : run_example<Example>(behind, Strategy::hsdp, folder.path(), kSteps / 2, kSteps))
      losses.push_back(loss);
    check_alike(losses, expected_of(name, before, behind), of_evaluation);
  }
}

}  // namespace

TEST_CASE("the MLP classifier computes what PyTorch does") { check_example<MlpClassifier>("mlp_classifier"); }
TEST_CASE("fine-tuning computes what PyTorch does") { check_example<FineTune>("fine_tune"); }
TEST_CASE("the conv net computes what PyTorch does") { check_example<ConvNet>("conv_net", kBiasTolerance); }
TEST_CASE("the LSTM computes what PyTorch does") { check_example<Lstm>("lstm"); }
TEST_CASE("the model with an op of its own computes what PyTorch does") {
  check_example<CustomTrainer>("custom_trainer");
}
TEST_CASE("an activation of one's own computes what PyTorch does") { check_example<CustomOp>("custom_op"); }
TEST_CASE("an optimizer of one's own computes what PyTorch does") { check_example<OwnOptimizer>("own_optimizer"); }
TEST_CASE("two models that train against each other compute what PyTorch does") {
  check_example<TwoModels>("two_models");
}
TEST_CASE("the vision transformer computes what PyTorch does") {
  check_example<VisionTransformer>("vision_transformer");
}
TEST_CASE("the language model computes what PyTorch does") { check_example<LanguageModel>("language_model"); }

}  // namespace zs::test::examples_test
