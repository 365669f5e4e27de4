// Trainings on an emulated GPU whose products compute GELU and its gradient.
#include <catch2/catch.hpp>

#include "tests/shard/mlp_training.h"

namespace zs::test::cuda_gelu_test {
namespace {

constexpr int kSteps = 4, kMicroBatches = 2, kBlocks = 2;

/// What a training left, and how many products computed GELU, and its gradient.
struct Outcome {
  std::vector<double> losses, norms;
  std::vector<float> weights;
  std::int64_t peak_bytes = 0;
  int gelu_products = 0, gelu_gradient_products = 0;
};

enum class Library { whole, without_gelu, not_asked };

Outcome train(Library library, bool is_recomputed) {
  DeviceOptions device = patient();
  device.fuses_gelu = library != Library::not_asked;
  Gpu gpu(1, device);
  if (library == Library::without_gelu) gpu.one.emulated_cublas()->know_no_gelu();
  TrainingOptions options{.micro_batches = kMicroBatches, .is_recomputed = is_recomputed};
  options.shard.precision.param = DType::bf16;
  Outcome outcome;
  Training training(gpu.device, options);
  StepVerifier verifier(gpu.device);
  for (const Training::Step& step : training.steps(kSteps)) {
    outcome.losses.push_back(step.loss);
    outcome.norms.push_back(step.norm);
  }
  CHECK_NOTHROW(verifier.check("the training"));
  outcome.weights = training.weights();
  outcome.peak_bytes = gpu.device.memory().peak_bytes();
  outcome.gelu_products = gpu.one.emulated_cublas()->gelu_products();
  outcome.gelu_gradient_products = gpu.one.emulated_cublas()->gelu_gradient_products();
  return outcome;
}

void check_same_bits(const Outcome& a, const Outcome& b) {
  CHECK(a.losses == b.losses);
  CHECK(a.norms == b.norms);
  CHECK(a.weights == b.weights);
}

}  // namespace

TEST_CASE(
    "every GELU of a training in bf16, and its gradient, is computed in a product, where cuBLASLt has them and is "
    "asked") {
  const bool is_recomputed = GENERATE(false, true);
  const Outcome fused = train(Library::whole, is_recomputed), apart = train(Library::without_gelu, is_recomputed),
                not_asked = train(Library::not_asked, is_recomputed);
  constexpr int kGelus = kSteps * kMicroBatches * kBlocks;
  CHECK(fused.gelu_products == (is_recomputed ? 2 : 1) * kGelus);
  CHECK(fused.gelu_gradient_products == kGelus);
  for (const Outcome* outcome : {&apart, &not_asked}) {
    CHECK(outcome->gelu_products == 0);
    CHECK(outcome->gelu_gradient_products == 0);
  }
  check_same_bits(apart, not_asked);
  CHECK(fused.weights != apart.weights);  // GELU is taken of sums that are not rounded
  CHECK(fused.peak_bytes == apart.peak_bytes);
}

TEST_CASE("GELU in products gives the same bits when a training is repeated, and when activations are recomputed") {
  const Outcome first = train(Library::whole, false);
  check_same_bits(train(Library::whole, false), first);
  check_same_bits(train(Library::whole, true), first);
}

}  // namespace zs::test::cuda_gelu_test
