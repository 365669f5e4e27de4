// The model as it is put together, against the published formulas in double precision.
#include "model/llama.h"

#include <catch2/catch.hpp>

#include <map>

#include "runtime/shard/sharded_runtime.h"
#include "tests/tensor/gradient_check.h"

namespace zs::test {
namespace {

constexpr std::int64_t kTime = 7;

LlamaConfig small_llama(bool is_tied) {
  return {.layers = 2, .heads = 4, .kv_heads = 2, .width = 24, .hidden = 20, .vocab = 61, .rotary_base = 100, .is_tied = is_tied};
}

using Weights = std::map<std::string, Values>;

Weights weights_of(Executor& executor) {
  Weights weights;
  for (int unit = 0; unit < static_cast<int>(executor.units().size()); ++unit)
    executor.read_full(unit, [&](const Parameter& parameter, const float* values) {
      weights[parameter.name()] = Values(values, values + parameter.numel());
    });
  return weights;
}

/// (T, V')
Values logits_of(const Weights& w, const LlamaConfig& config, const std::vector<std::int32_t>& ids) {
  const ref::Attention dims{1, kTime, config.heads, config.width / config.heads, config.kv_heads};
  Values x = ref::embedding(ids, kTime, w.at("token_embedding.weight"), nullptr, config.width);
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const auto of = [&](const char* name) { return w.at(fmt::format("blocks.{}.{}", layer, name)); };
    const Values qkv = ref::linear(ref::rms_norm(x, of("norm1.weight"), 1e-5), of("attention.qkv.weight"), nullptr, config.width);
    const Values attended = ref::causal_attention(ref::rotary(qkv, dims, {.base = config.rotary_base}), dims);
    x = ref::add(x, ref::linear(attended, of("attention.out.weight"), nullptr, config.width));
    const Values gate_up = ref::linear(ref::rms_norm(x, of("norm2.weight"), 1e-5), of("mlp.gate_up.weight"), nullptr, config.width);
    x = ref::add(x, ref::linear(ref::swiglu(gate_up, 2 * config.hidden), of("mlp.down.weight"), nullptr, config.hidden));
  }
  const Values& head = w.at(config.is_tied ? "token_embedding.weight" : "head.weight");
  return ref::linear(ref::rms_norm(x, w.at("norm.weight"), 1e-5), head, nullptr, config.width);
}

}  // namespace

TEST_CASE("a Llama computes what its papers say, from tokens to logits") {
  const LlamaConfig config = small_llama(GENERATE(false, true));
  const auto device = Device::create(DeviceKind::cpu, {});
  Context context(*device);
  const auto world = make_single_world({});
  Llama model(config);
  ShardedRuntime runtime(context, *world, {});
  shard_module(model, runtime, Units::block);
  const auto ids = random_ids(kTime, config.vocab, 3);
  const Values expected = logits_of(weights_of(runtime.executor()), config, ids);
  const std::int64_t classes = padded_vocab(config.vocab);
  for (const std::int64_t position : {std::int64_t{0}, kTime - 1}) {
    runtime.begin_micro_batch(Mode::eval, true);
    const Tensor logits = model.next_token_logits(Tensor::from_host(context, {1, kTime}, ids), position);
    runtime.end_micro_batch();
    const auto first = expected.begin() + position * classes;
    check_close(fmt::format("logits at {}", position), logits.to_host(), Values(first, first + classes), 2e-6);
  }
}

TEST_CASE("a Llama has the parameters of its sizes, and an embedding that is not the head does no work for a token") {
  const LlamaConfig tied = small_llama(true), untied = small_llama(false);
  const std::int64_t width = 24, table = 128 * width, qkv = (4 + 2 * 2) * 6 * width,
                     block = 2 * width + qkv + width * width + 3 * 20 * width;
  CHECK(Llama(tied).parameter_count() == table + 2 * block + width);
  CHECK(Llama(tied).working_parameter_count() == Llama(tied).parameter_count());
  CHECK(Llama(untied).parameter_count() == 2 * table + 2 * block + width);
  CHECK(Llama(untied).working_parameter_count() == Llama(tied).parameter_count());
}

}  // namespace zs::test
