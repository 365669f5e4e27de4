// A model's loss and gradients over packed documents are those of one document at a time.
#include "runtime/tensor/documents.h"

#include <catch2/catch.hpp>
#include <functional>

#include "model/families/family.h"
#include "tests/tensor/gradient_check.h"
#include "tests/tensor/plain_owner.h"

namespace zs::test::documents_test {
namespace {

constexpr std::int64_t kBatch = 2, kTime = 16;

struct Outcome {
  double loss = 0;
  std::map<std::string, std::vector<float>> gradients;
};

class Trained {
 public:
  Trained(const ModelConfig& config, Recompute recompute)
      : device_(Device::create(DeviceKind::cpu, {})),
        context_(*device_),
        owner_(context_),
        model_(family_named(config.family).make(config)),
        ids_(random_ids(kBatch * kTime, config.vocab, 3)),
        targets_(random_ids(kBatch * kTime, config.vocab, 4)) {
    model_->set_recompute(recompute);
    for_each([&](Parameter& parameter) {
      const bool is_vector = parameter.shape().rank() == 1;
      owner_.add(
          parameter,
          to_floats(
              normal(parameter.shape(), parameter.name().c_str(), is_vector ? 0.3 : 0.15, is_vector ? 0.7 : 0).values));
    });
  }

  /// Adds the mean over all tokens of the batch, as far as it is of these.
  void add(std::int64_t first, const Shape& shape, const Documents& documents) {
    const auto part = [&](const std::vector<std::int32_t>& all) {
      const auto begin = all.begin() + first;
      return Tensor::from_host(context_, shape, std::vector<std::int32_t>(begin, begin + shape.numel()));
    };
    const float share = static_cast<float>(shape.numel()) / static_cast<float>(kBatch * kTime);
    const Tensor loss = model_->loss(part(ids_), part(targets_), {.seed = share}, documents);
    backward(loss, share);
    outcome_.loss += static_cast<double>(share) * static_cast<double>(loss.to_host().front());
  }
  Outcome outcome() {
    for_each([&](Parameter& parameter) { outcome_.gradients[parameter.name()] = owner_.grad(parameter).to_host(); });
    return outcome_;
  }

 private:
  void for_each(const std::function<void(Parameter&)>& visit) {
    const std::function<void(Module&)> walk = [&](Module& module) {
      for (const auto& parameter : module.own_parameters()) visit(*parameter);
      for (Module* child : module.children()) walk(*child);
    };
    walk(*model_);
  }

  std::unique_ptr<Device> device_;
  Context context_;
  PlainOwner owner_;
  std::unique_ptr<LanguageModel> model_;
  std::vector<std::int32_t> ids_, targets_;
  Outcome outcome_;
};

}  // namespace

TEST_CASE("every family's loss and gradients over packed documents are those of one document at a time") {
  const std::string name = GENERATE("gpt2", "llama", "mistral", "qwen3", "mixtral", "gpt_oss");
  const Recompute recompute = GENERATE(Recompute::none, Recompute::attention, Recompute::block);
  const Family& family = family_named(name);
  ModelConfig config{.family = name};
  config.layers = 2, config.heads = 4, config.width = 24, config.context = kTime, config.vocab = 61;
  config.norm_eps = family.defaults.norm_eps;
  if (family.has("model.kv_heads")) config.kv_heads = 2, config.hidden = 20, config.tied_head = false;
  if (family.has("model.window")) config.window = 3;
  if (family.has("model.experts")) config.experts = 4, config.experts_per_token = 2;
  family.derive(config);
  const std::vector<std::int64_t> lengths = {5, 1, 10, 4, 4, 8};
  Trained packed(config, recompute), alone(config, recompute);
  packed.add(0, {kBatch, kTime}, Documents(lengths));
  std::int64_t first = 0;
  for (const std::int64_t length : lengths) {
    alone.add(first, {1, length}, {});
    first += length;
  }
  const Outcome got = packed.outcome(), want = alone.outcome();
  CAPTURE(name);
  CHECK(got.loss == Approx(want.loss).epsilon(1e-6));
  for (const auto& [parameter, gradient] : want.gradients) {
    CAPTURE(parameter);
    const std::vector<float>& own = got.gradients.at(parameter);
    double worst = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i)
      worst = std::max(worst, std::abs(static_cast<double>(own[i]) - static_cast<double>(gradient[i])));
    CHECK(worst < 1e-6);
  }
}

TEST_CASE("documents of one loss are not those of the next") {
  const ModelConfig config{.family = "gpt2", .layers = 1, .heads = 2, .width = 8, .context = kTime, .vocab = 11};
  Trained once(config, Recompute::block), twice(config, Recompute::block);
  once.add(0, {kBatch, kTime}, {});
  twice.add(0, {kBatch, kTime}, Documents({4, 12, 16}));
  const double first = twice.outcome().loss;
  twice.add(0, {kBatch, kTime}, {});
  CHECK(twice.outcome().loss - first == Approx(once.outcome().loss).epsilon(1e-6));
  CHECK(first != Approx(once.outcome().loss).epsilon(1e-6));
}

}  // namespace zs::test::documents_test
