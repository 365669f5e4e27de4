#include <catch2/catch.hpp>

#include <memory>

#include "runtime/tensor/ops.h"
#include "tests/tensor/gradient_check.h"

namespace zs::test::autograd_memory_test {
namespace {

std::int64_t live(Device& device, const std::string& label) {
  const auto& labels = device.memory().live_by_label();
  const auto found = labels.find(label);
  return found == labels.end() ? 0 : found->second;
}

/// Notes how many bytes of activations live after each op's backward.
class MeasuringOwner final : public PlainOwner {
 public:
  MeasuringOwner(Context& context, Device& device) : PlainOwner(context), device_(device) {}
  void before_backward(Parameter& parameter) override {
    const std::int64_t before = device_.memory().live_bytes();
    PlainOwner::before_backward(parameter);
    grad_bytes_ += device_.memory().live_bytes() - before;
  }
  void after_backward(Parameter&) override { activations.push_back(live(device_, "activation") - grad_bytes_); }
  std::vector<std::int64_t> activations;

 private:
  Device& device_;
  std::int64_t grad_bytes_ = 0;
};

/// A chain of linear layers of one width over x (rows, width).
struct Chain {
  static constexpr std::int64_t kLayers = 6, kRows = 8, kWidth = 16;
  static constexpr std::int64_t kTensorBytes = kRows * kWidth * 4;

  Chain() {
    for (std::int64_t i = 0; i < kLayers; ++i)
      weights.push_back(std::make_unique<Parameter>(fmt::format("w{}", i), Shape{kWidth, kWidth}, Init{}, true));
  }
  /// The owner must die before the chain.
  void give_to(PlainOwner& owner) const {
    for (const auto& weight : weights) owner.add(*weight, std::vector<float>(kWidth * kWidth, 0.1f));
  }
  Tensor forward(Context& context) const {
    Tensor h = Tensor::from_host(context, {kRows, kWidth}, std::vector<float>(kRows * kWidth, 1.0f));
    for (const auto& weight : weights) h = linear(h, *weight, nullptr);
    return weighted_sum(h, std::vector<float>(kRows * kWidth, 1.0f));
  }
  std::vector<std::unique_ptr<Parameter>> weights;
};

struct Footprint {
  std::vector<std::int64_t> live;  // after forward, after backward, at the end
  std::int64_t peak = 0, reserved = 0;
  std::map<std::string, std::int64_t> at_peak;
  std::vector<std::string> ops;
};

/// Every op of runtime/tensor/ops.h, forward and backward.
Tensor run_every_op(Context& context, const std::vector<std::unique_ptr<Parameter>>& p, DType) {
  const Tensor ids = Tensor::from_host(context, {2, 6}, random_ids(12, 20, 1));
  const Tensor x = embedding(ids, *p[0], p[1].get());
  const Tensor qkv = linear(layer_norm(x, *p[2], *p[3]), *p[4], p[5].get());
  const Tensor y = add(x, causal_attention(qkv, 2));
  const Tensor z = gelu(y.reshape({12, 8}), GeluKind::tanh).reshape({2, 6, 8});
  return lm_head_loss(add(y, z), *p[0], Tensor::from_host(context, {12}, random_ids(12, 20, 2)), 20);
}

Footprint footprint_of(DeviceKind kind, DType dtype) {
  const auto device = Device::create(kind, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Context context(*device);
  PlainOwner owner(context, dtype, DType::f32);
  std::vector<std::unique_ptr<Parameter>> parameters;
  for (const Shape& shape : {Shape{24, 8}, Shape{6, 8}, Shape{8}, Shape{8}, Shape{24, 8}, Shape{24}}) {
    parameters.push_back(std::make_unique<Parameter>(fmt::format("p{}", parameters.size()), shape, Init{}, true));
    owner.add(*parameters.back(), std::vector<float>(static_cast<std::size_t>(shape.numel()), 0.5f));
  }
  Footprint footprint;
  device->trace().start();
  Tensor loss = run_every_op(context, parameters, dtype);
  footprint.live.push_back(device->memory().live_bytes());
  backward(loss);
  footprint.live.push_back(device->memory().live_bytes());
  loss = {};
  owner.clear_gradients();
  footprint.live.push_back(device->memory().live_bytes());
  footprint.peak = device->memory().peak_bytes();
  footprint.at_peak = device->memory().at_peak();
  footprint.reserved = device->pool().reserved_bytes();
  for (const TraceEntry& entry : device->trace().entries()) footprint.ops.push_back(entry.op.name);
  device->synchronize();
  return footprint;
}

}  // namespace

TEST_CASE("saved activations are freed as backward proceeds, one op at a time") {
  const auto device =
      Device::create(GENERATE(DeviceKind::cpu, DeviceKind::meta), {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Context context(*device);
  const Chain chain;
  MeasuringOwner owner(context, *device);
  chain.give_to(owner);
  const std::int64_t before = live(*device, "activation");
  Tensor loss = chain.forward(context);
  constexpr std::int64_t kTensor = Chain::kTensorBytes, kScalar = 64;
  // Saved: the input of each layer, and the weights of the sum; the last layer's output is not needed again.
  CHECK(live(*device, "activation") - before == (Chain::kLayers + 1) * kTensor + kScalar);
  backward(loss);
  REQUIRE(owner.activations.size() == Chain::kLayers);
  for (std::int64_t i = 0; i < Chain::kLayers; ++i) {
    // The first to run is the last layer. Left: the inputs of the layers below, the gradient that goes down to them,
    // loss and seed.
    const std::int64_t below = Chain::kLayers - 1 - i, passed_down = below > 0 ? 1 : 0;
    CHECK(owner.activations[static_cast<std::size_t>(i)] - before == (below + passed_down) * kTensor + kScalar);
  }
  loss = {};
  owner.clear_gradients();
  CHECK(live(*device, "activation") == before);
  device->synchronize();
}

TEST_CASE("a graph that is dropped without a walk gives all its memory back") {
  const auto device = Device::create(DeviceKind::meta, {});
  Context context(*device);
  const Chain chain;
  PlainOwner owner(context);
  chain.give_to(owner);
  const std::int64_t before = device->memory().live_bytes();
  chain.forward(context);
  CHECK(device->memory().live_bytes() == before);
}

TEST_CASE("without recording a forward holds two activations at a time") {
  const auto device = Device::create(DeviceKind::meta, {});
  Context context(*device);
  const Chain chain;
  PlainOwner owner(context);
  chain.give_to(owner);
  const std::int64_t before = device->memory().live_bytes();
  device->memory().reset_peak();
  const NoGradGuard guard(context);
  chain.forward(context);
  CHECK(device->memory().peak_bytes() - before == 2 * Chain::kTensorBytes + 64);
}

TEST_CASE(
    "I4: every op counts the same bytes, peaks alike and enqueues the same ops on the meta device as on the cpu") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const Footprint cpu = footprint_of(DeviceKind::cpu, dtype), meta = footprint_of(DeviceKind::meta, dtype);
  CHECK(cpu.live == meta.live);
  CHECK(cpu.peak == meta.peak);
  CHECK(cpu.at_peak == meta.at_peak);
  CHECK(cpu.reserved == meta.reserved);
  CHECK(cpu.ops == meta.ops);
  CHECK(cpu.peak > cpu.live.back());
}

TEST_CASE("gradients of one tensor are added in place where nobody else holds the sum") {
  const auto device = Device::create(DeviceKind::meta, {});
  Context context(*device);
  const bool is_leaf = GENERATE(true, false);
  Tensor x = Tensor::zeros(context, {4, 3}, DType::f32);
  x.set_requires_grad();
  const Tensor h = is_leaf ? x : x.reshape({12});
  Tensor loss = weighted_sum(h, std::vector<float>(12, 1.0f));
  for (int i = 0; i < 3; ++i) loss = add(loss, weighted_sum(h, std::vector<float>(12, 1.0f)));
  device->trace().start();
  backward(loss);
  std::vector<OpInfo> sums;
  for (const TraceEntry& entry : device->trace().entries()) {
    if (entry.op.name == "add_gradients") sums.push_back(entry.op);
  }
  REQUIRE(sums.size() == 3);
  for (const OpInfo& sum : sums) CHECK(sum.writes[0].data == sum.reads[0].data);
}

TEST_CASE("the head holds the logits of one chunk at a time, and their gradient in place in f32") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const auto device = Device::create(DeviceKind::meta, {});
  Context context(*device);
  constexpr std::int64_t kTokens = 1200, kClasses = 65'536, kChunk = 416;
  REQUIRE(lm_head_chunk_rows(kTokens, kClasses) == kChunk);
  Parameter weight("weight", {kClasses, 2}, {}, true);
  PlainOwner owner(context, dtype, DType::f32);
  owner.add(weight, std::vector<float>(kClasses * 2, 0.0f));
  const Tensor x = Tensor::zeros(context, {kTokens, 2}, dtype);
  const Tensor loss =
      lm_head_loss(x, weight, Tensor::from_host(context, {kTokens}, random_ids(kTokens, kClasses, 1)), kClasses);
  CHECK(device->memory().at_peak().at("logits") == kChunk * kClasses * 4);
  CHECK(live(*device, "logits") == 0);
  device->memory().reset_peak();
  backward(loss);
  CHECK(device->memory().at_peak().at("logits") == kChunk * kClasses * (dtype == DType::f32 ? 4 : 4 + 2));
}

TEST_CASE("the order verifier finds nothing in the trace of every op") {
  const auto device = Device::create(DeviceKind::meta, {});
  Context context(*device);
  device->trace().start();
  const Chain chain;
  PlainOwner owner(context);
  chain.give_to(owner);
  backward(chain.forward(context));
  for (const OrderViolation& violation : verify_order(device->trace().entries())) FAIL_CHECK(violation.message);
}

TEST_CASE("the meta device holds no values") {
  const auto device = Device::create(DeviceKind::meta, {});
  Context context(*device);
  CHECK_THROWS_AS(Tensor::zeros(context, {2}, DType::f32).to_host(), Error);
}

}  // namespace zs::test::autograd_memory_test
