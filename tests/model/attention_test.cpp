// Which tokens see which in an attention layer, and what they make of it, against loops over single tokens.
#include "model/nn/attention.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <functional>
#include <map>

#include "runtime/shard/runtime/sharded_runtime.h"
#include "tests/message_of.h"
#include "tests/tensor/gradient_check.h"

namespace zs::test::attention_test {
namespace {

constexpr std::int64_t kBatch = 2, kTokens = 7, kWidth = 8, kHeads = 4, kKvHeads = 2, kDim = 3;
constexpr std::int64_t kColumns = (kHeads + 2 * kKvHeads) * kDim;

/// Whether token i of a sequence sees token j.
using Sees = std::function<bool(std::int64_t sequence, std::int64_t i, std::int64_t j)>;

/// What the heads gather from qkv (B, T, kColumns): (B, T, kHeads kDim). sinks (kHeads), or null.
Values gathered(const Values& qkv, const Sees& sees, const Values* sinks) {
  const auto at = [&](std::int64_t row, std::int64_t head, std::int64_t d) {
    return qkv[row * kColumns + head * kDim + d];
  };
  Values y(kBatch * kTokens * kHeads * kDim);
  for (std::int64_t row = 0; row < kBatch * kTokens; ++row) {
    for (std::int64_t head = 0; head < kHeads; ++head) {
      const std::int64_t sequence = row / kTokens, shared = head / (kHeads / kKvHeads);
      double total = sinks != nullptr ? std::exp((*sinks)[head]) : 0;
      Values sum(kDim);
      for (std::int64_t j = 0; j < kTokens; ++j) {
        if (!sees(sequence, row % kTokens, j)) continue;
        double score = 0;
        for (std::int64_t d = 0; d < kDim; ++d)
          score += at(row, head, d) * at(sequence * kTokens + j, kHeads + shared, d) / std::sqrt(double(kDim));
        total += std::exp(score);
        for (std::int64_t d = 0; d < kDim; ++d)
          sum[d] += std::exp(score) * at(sequence * kTokens + j, kHeads + kKvHeads + shared, d);
      }
      for (std::int64_t d = 0; d < kDim; ++d) y[(row * kHeads + head) * kDim + d] = sum[d] / total;
    }
  }
  return y;
}

struct One : Layer<One> {
  explicit One(const AttentionOptions& options) : attention(make_child<Attention>("attention", options)) {}
  Tensor forward(const Tensor& x, const Documents& documents, const Tensor& mask) {
    return attention(x, documents, mask);
  }
  Attention& attention;
};

AttentionOptions options_of(bool is_causal, std::int64_t window, bool has_sinks = false) {
  return {.width = kWidth,
          .heads = kHeads,
          .kv_heads = kKvHeads,
          .head_dim = kDim,
          .window = window,
          .is_causal = is_causal,
          .has_sinks = has_sinks};
}

/// A sharded layer within an evaluation.
struct Evaluated {
  explicit Evaluated(const AttentionOptions& options) : net(options), runtime(context, *world, {}) {
    shard_module(net, runtime, Units::model);
    runtime.executor().read_full(0, [&](const Parameter& parameter, const float* values) {
      weights[parameter.name()] = Values(values, values + parameter.numel());
    });
    runtime.begin_micro_batch(Mode::eval, true);
  }
  ~Evaluated() { runtime.abandon(); }

  std::unique_ptr<World> world = make_single_world({});
  std::unique_ptr<Device> device = Device::create(DeviceKind::cpu, {});
  Context context{*device};
  One net;
  ShardedRuntime runtime;
  std::map<std::string, Values> weights;
};

}  // namespace

TEST_CASE("a token sees what its options, its document and a mask let it see") {
  const bool is_causal = GENERATE(true, false), is_packed = GENERATE(false, true), has_mask = GENERATE(false, true);
  const std::int64_t window = GENERATE(0, 3);
  const bool has_sinks = GENERATE(false, true);
  CAPTURE(is_causal, is_packed, has_mask, window, has_sinks);
  Evaluated layer(options_of(is_causal, window, has_sinks));
  Values x = normal({kBatch, kTokens, kWidth}, "x").values;
  for (double& value : x) value *= 20;  // so that scores differ
  std::vector<std::int32_t> mask;       // of each sequence; a token sees itself
  for (std::int64_t i = 0; i < kBatch * kTokens * kTokens; ++i)
    mask.push_back(i * i % 5 < 2 || i / kTokens % kTokens == i % kTokens);
  const std::int64_t begins[] = {3, 2};  // of the second document of a sequence
  const auto sees = [&](std::int64_t sequence, std::int64_t i, std::int64_t j) {
    if ((is_causal && j > i) || (window > 0 && std::abs(i - j) >= window)) return false;
    if (is_packed && (i < begins[sequence]) != (j < begins[sequence])) return false;
    return !has_mask || mask[static_cast<std::size_t>((sequence * kTokens + i) * kTokens + j)] != 0;
  };
  const Tensor of_mask = has_mask ? Tensor::from_host(layer.context, {kBatch, 1, kTokens, kTokens}, mask) : Tensor{};
  const Tensor y = layer.net(Tensor::from_host(layer.context, {kBatch, kTokens, kWidth}, to_floats(x)),
                             is_packed ? Documents({3, 4, 2, 5}) : Documents(), of_mask);
  const auto& w = layer.weights;
  const Values qkv = ref::linear(x, w.at("attention.qkv.weight"), &w.at("attention.qkv.bias"), kWidth);
  const Values* const sinks = has_sinks ? &w.at("attention.sinks") : nullptr;
  check_close(
      "y", y.to_host(),
      ref::linear(gathered(qkv, sees, sinks), w.at("attention.out.weight"), &w.at("attention.out.bias"), kHeads * kDim),
      2e-6);
}

TEST_CASE("a cache is refused where a token sees what comes behind it, or a mask says what it sees") {
  const bool is_causal = GENERATE(true, false);
  Evaluated layer(options_of(is_causal, 0));
  KvCache cache(kTokens);
  layer.net.attention.use_cache(&cache);
  const Tensor x = Tensor::zeros(layer.context, {1, kTokens, kWidth}, DType::f32);
  const Tensor mask = is_causal ? Tensor::zeros(layer.context, {kTokens, kTokens}, DType::f32) : Tensor{};
  CHECK(message_of([&] { layer.net(x, Documents(), mask); }) ==
        std::string("attention \"attention\" with a cache ") + (is_causal ? "and a mask" : "is not causal") +
            " (in attention): a cache is of tokens that see those before them, all or a window of them");
}

}  // namespace zs::test::attention_test
