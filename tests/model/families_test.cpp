// Every family as it is put together, against the published formulas in double precision.
#include "model/families/family.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "model/families/hf_config.h"
#include "runtime/shard/runtime/unshard_scope.h"
#include "runtime/tensor/autograd.h"
#include "tests/message_of.h"
#include "tests/tensor/gradient_check.h"

namespace zs::test::families_test {
namespace {

constexpr std::int64_t kTime = 11;

/// Of two layers, and all else small and different.
ModelConfig small(ModelConfig model) {
  const Family& family = family_named(model.family);
  model.layers = 2, model.heads = 4, model.width = 24, model.context = 16, model.vocab = 61;
  model.norm_eps = model.norm_eps == ModelConfig{}.norm_eps ? family.defaults.norm_eps : model.norm_eps;
  if (family.has("model.rotary_base")) model.rotary_base = 100;
  if (family.has("model.kv_heads") && model.kv_heads == 0) model.kv_heads = 2;
  if (model.hidden == 0 && family.has("model.kv_heads")) model.hidden = 20;
  family.derive(model);
  return model;
}

using Weights = std::map<std::string, Values>;

/// Random ones in every parameter, biases and norms too.
void make_random(ShardedRuntime& runtime, Context& context) {
  for (int unit = 0; unit < static_cast<int>(runtime.executor().units().size()); ++unit) {
    const UnshardScope scope(runtime, {unit});
    for (const Parameter* parameter : runtime.executor().units()[static_cast<std::size_t>(unit)].parameters) {
      const bool is_vector = parameter->shape().rank() == 1;
      const Argument values =
          normal(parameter->shape(), parameter->name().c_str(), is_vector ? 0.3 : 0.15, is_vector ? 0.7 : 0);
      context.launch({"fill", {}, {scope.value(*parameter)}},
                     [out = scope.value(*parameter), values = to_floats(values.values)](ExecContext&) {
                       std::copy(values.begin(), values.end(), out.as<float>());
                     });
    }
  }
}

Weights weights_of(Executor& executor) {
  Weights weights;
  for (int unit = 0; unit < static_cast<int>(executor.units().size()); ++unit)
    executor.read_full(unit, [&](const Parameter& parameter, const float* values) {
      weights[parameter.name()] = Values(values, values + parameter.numel());
    });
  return weights;
}

/// The formulas, by the weights that there are.
class Reference {
 public:
  Reference(const Weights& weights, const ModelConfig& model, std::int64_t window, const RotaryScaling& scaling)
      : weights_(weights),
        model_(model),
        is_post_norm_(model.family == "olmo2"),
        is_gemma_(model.family == "gemma3"),
        dims_{.batch = 1,
              .time = kTime,
              .heads = model.heads,
              .head_dim = model.head_dim > 0 ? model.head_dim : model.width / model.heads,
              .kv_heads = model.kv_heads > 0 ? model.kv_heads : model.heads,
              .window = window > 0 ? window : kTime},
        scaling_(scaling) {}

  /// (T, V')
  Values logits(const std::vector<std::int32_t>& ids) {
    Values x =
        ref::embedding(ids, kTime, *find("token_embedding.weight"), find("position_embedding.weight"), model_.width);
    for (double& value : x) value *= is_gemma_ ? std::sqrt(static_cast<double>(model_.width)) : 1;
    for (std::int64_t layer = 0; layer < model_.layers; ++layer) {
      const std::string path = fmt::format("blocks.{}.", layer);
      const auto before = [&](const char* name) { return is_post_norm_ ? x : norm(path + name, x); };
      const auto after = [&](const char* name, const Values& y) {
        if (is_gemma_) return norm(path + "output_" + name, y);
        return is_post_norm_ ? norm(path + name, y) : y;
      };
      const auto& plain = model_.no_rope_layers;
      const bool is_turned = std::find(plain.begin(), plain.end(), layer) == plain.end();
      const Values attention = this->attention(path + "attention.", before("norm1"), is_turned, is_local(layer));
      x = ref::add(x, after("norm1", linear(path + "attention.out", attention)));
      x = ref::add(x, after("norm2", mlp(path + "mlp.", before("norm2"))));
    }
    const Values* const head = find("head.weight");
    return ref::linear(norm("norm", x), head != nullptr ? *head : *find("token_embedding.weight"), nullptr,
                       model_.width);
  }

 private:
  const Values* find(const std::string& name) const {
    const auto found = weights_.find(name);
    return found == weights_.end() ? nullptr : &found->second;
  }
  Values norm(const std::string& path, const Values& x) const {
    const Values weight = factors(*find(path + ".weight"));
    const Values* const bias = find(path + ".bias");
    return bias != nullptr ? ref::layer_norm(x, weight, *bias, model_.norm_eps)
                           : ref::rms_norm(x, weight, model_.norm_eps);
  }
  /// Factors of an RMS norm with these weights.
  Values factors(Values weight) const {
    for (double& value : weight) value += is_gemma_ ? 1 : 0;
    return weight;
  }
  bool is_local(std::int64_t layer) const {
    const auto& global = model_.global_layers;
    return is_gemma_ && std::find(global.begin(), global.end(), layer) == global.end();
  }
  Values linear(const std::string& path, const Values& x) const {
    return ref::linear(x, *find(path + ".weight"), find(path + ".bias"), static_cast<std::int64_t>(x.size()) / kTime);
  }
  /// Norms of all query heads of a token together, and of its key heads.
  Values norm_of_all(const Values& qkv, const Values& q, const Values& k) const {
    Values y = qkv;
    for (auto token = y.begin(); token != y.end(); token += dims_.width()) {
      const auto keys = token + std::ssize(q);
      const Values queries = ref::rms_norm(Values(token, keys), q, model_.norm_eps),
                   others = ref::rms_norm(Values(keys, keys + std::ssize(k)), k, model_.norm_eps);
      std::copy(others.begin(), others.end(), std::copy(queries.begin(), queries.end(), token));
    }
    return y;
  }
  Values attention(const std::string& path, const Values& x, bool is_turned, bool is_local) const {
    ref::Attention dims = dims_;
    if (is_gemma_ && !is_local) dims.window = kTime;
    Values qkv = linear(path + "qkv", x);
    if (const Values* const q = find(path + "q_norm.weight"), * const k = find(path + "k_norm.weight"); q != nullptr)
      qkv = std::ssize(*q) == dims_.head_dim ? ref::qk_norm(qkv, factors(*q), factors(*k), dims_, model_.norm_eps)
                                             : norm_of_all(qkv, *q, *k);
    if (find("position_embedding.weight") == nullptr && is_turned)
      qkv = ref::rotary(qkv, dims_,
                        is_local ? RotaryOptions{.base = model_.local_rotary_base}
                                 : RotaryOptions{.base = model_.rotary_base, .scaling = scaling_});
    return ref::causal_attention(qkv, dims);
  }
  /// Token by token, and expert by expert.
  Values mixture(const std::string& path, const Values& x) const {
    const Values scores = linear(path + "router", x), &gate_up = *find(path + "experts.gate_up"),
                 &down = *find(path + "experts.down");
    const auto part = [](const Values& all, std::size_t index, std::int64_t length) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(index) * length;
      return Values(begin, begin + length);
    };
    const std::int64_t width = model_.width, hidden = model_.expert_hidden > 0 ? model_.expert_hidden : model_.hidden;
    Values y;
    for (std::size_t t = 0; t < kTime; ++t) {
      Values p = part(scores, t, model_.experts);
      double all = 0, chosen = 0;
      for (double& score : p) all += score = std::exp(score);
      std::vector<std::size_t> order(p.size());
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return p[a] > p[b]; });
      order.resize(static_cast<std::size_t>(model_.experts_per_token));
      for (const std::size_t e : order) chosen += p[e];
      Values sum(static_cast<std::size_t>(width));
      for (const std::size_t e : order) {
        const Values up = ref::linear(part(x, t, width), part(gate_up, e, 2 * hidden * width), nullptr, width),
                     out = ref::linear(ref::swiglu(up, 2 * hidden), part(down, e, width * hidden), nullptr, hidden);
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += p[e] / (model_.norm_topk ? chosen : all) * out[i];
      }
      y.insert(y.end(), sum.begin(), sum.end());
    }
    if (find(path + "shared.down.weight") == nullptr) return y;
    const Values gates = linear(path + "shared_gate", x),
                 shared = linear(path + "shared.down",
                                 ref::swiglu(linear(path + "shared.gate_up", x), 2 * model_.shared_expert_hidden));
    for (std::size_t i = 0; i < y.size(); ++i)
      y[i] += shared[i] / (1 + std::exp(-gates[i / static_cast<std::size_t>(width)]));
    return y;
  }
  Values mlp(const std::string& path, const Values& x) const {
    if (find(path + "router.weight") != nullptr) return mixture(path, x);
    if (find(path + "gate_up.weight") == nullptr)
      return linear(path + "down", ref::gelu(linear(path + "up", x),
                                             model_.activation == "gelu_erf" ? GeluKind::erf : GeluKind::tanh));
    const auto gated = is_gemma_ ? ref::geglu : ref::swiglu;
    return linear(path + "down", gated(linear(path + "gate_up", x), 2 * model_.hidden));
  }

  const Weights& weights_;
  const ModelConfig& model_;
  const bool is_post_norm_, is_gemma_;
  ref::Attention dims_;
  RotaryScaling scaling_;
};

/// A model of a family, and what it must have and must not.
struct Case {
  ModelConfig model;
  std::vector<std::string> has, lacks;
  RotaryScaling scaling = {};
};

std::vector<Case> cases() {
  const std::string block = "blocks.1.", head = "head.weight";
  return {
      {{.family = "gpt2"},
       {"position_embedding.weight", block + "attention.qkv.bias", block + "mlp.up.bias", "norm.bias"},
       {head}},
      {{.family = "gpt2", .activation = "gelu_erf", .hidden = 40, .tied_head = false, .norm_eps = 0.01}, {head}, {}},
      {{.family = "llama", .tied_head = false},
       {head, block + "mlp.gate_up.weight"},
       {block + "attention.qkv.bias", "norm.bias"}},
      {{.family = "llama", .kv_heads = 1, .tied_head = true, .head_dim = 10, .norm_eps = 1e-6}, {}, {head}},
      {{.family = "llama",
        .tied_head = false,
        .rotary_scaling = "llama3",
        .rotary_factor = 8,
        .rotary_low = 1,
        .rotary_high = 4,
        .rotary_context = 64},
       {},
       {},
       {.factor = 8, .low = 1, .high = 4, .context = 64}},
      {{.family = "llama", .tied_head = false, .rotary_scaling = "linear", .rotary_factor = 3}, {}, {}, {.factor = 3}},
      {{.family = "mistral", .tied_head = false, .window = 3}, {head}, {block + "attention.qkv.bias"}},
      {{.family = "qwen2", .tied_head = true}, {block + "attention.qkv.bias"}, {block + "attention.out.bias", head}},
      {{.family = "qwen3", .tied_head = false, .head_dim = 8},
       {head, block + "attention.q_norm.weight", block + "attention.k_norm.weight"},
       {block + "attention.qkv.bias"}},
      {{.family = "mixtral", .tied_head = false, .window = 3, .experts = 4, .experts_per_token = 2},
       {head, block + "mlp.experts.gate_up"},
       {block + "mlp.gate_up.weight", block + "attention.qkv.bias"}},
      {{.family = "olmo2", .tied_head = false}, {block + "attention.q_norm.weight", block + "norm2.weight"}, {}},
      {{.family = "phi3", .tied_head = false, .window = 4}, {block + "attention.qkv.weight"}, {}},
      {{.family = "smollm3", .tied_head = true, .no_rope_layers = {1}}, {}, {head}},
      {{.family = "gemma3", .kv_heads = 1, .rotary_base = 1e6, .head_dim = 8, .window = 3, .global_layers = {1}},
       {block + "output_norm1.weight", block + "output_norm2.weight", block + "attention.q_norm.weight"},
       {head}},
      {{.family = "qwen2_moe",
        .tied_head = false,
        .experts = 3,
        .experts_per_token = 1,
        .shared_expert_hidden = 10,
        .norm_topk = false},
       {block + "mlp.shared_gate.weight", block + "attention.qkv.bias"},
       {block + "mlp.shared.up.weight"}},
      {{.family = "olmoe", .kv_heads = 1, .tied_head = false, .experts = 6, .experts_per_token = 2, .norm_topk = false},
       {block + "attention.k_norm.weight"},
       {block + "mlp.shared_gate.weight"}},
      {{.family = "qwen3_moe",
        .tied_head = true,
        .head_dim = 8,
        .experts = 5,
        .experts_per_token = 3,
        .expert_hidden = 14,
        .norm_topk = false,
        .dense_layers = {0}},
       {"blocks.0.mlp.gate_up.weight", block + "mlp.experts.down", block + "attention.q_norm.weight"},
       {head, "blocks.0.mlp.router.weight", block + "mlp.gate_up.weight"}},
  };
}

}  // namespace

TEST_CASE("every family computes what its papers say, from tokens to logits") {
  const Case test = GENERATE(from_range(cases()));
  const ModelConfig config = small(test.model);
  CAPTURE(config.family, config.kv_heads, config.head_dim, config.rotary_scaling);
  const auto device = Device::create(DeviceKind::cpu, {});
  Context context(*device);
  const auto world = make_single_world({});
  const auto model = family_named(config.family).make(config);
  ShardedRuntime runtime(context, *world, {});
  shard_module(*model, runtime, Units::block);
  make_random(runtime, context);
  device->synchronize();
  const Weights weights = weights_of(runtime.executor());
  for (const std::string& name : test.has) CHECK(weights.contains(name));
  for (const std::string& name : test.lacks) CHECK_FALSE(weights.contains(name));
  const auto ids = random_ids(kTime, config.vocab, 3);
  const Values expected = Reference(weights, config, config.window, test.scaling).logits(ids);
  const std::int64_t classes = padded_vocab(config.vocab);
  for (const std::int64_t position : {std::int64_t{0}, std::int64_t{4}, kTime - 1}) {
    runtime.begin_micro_batch(Mode::eval, true);
    const Tensor logits = model->next_token_logits(Tensor::from_host(context, {1, kTime}, ids), position);
    runtime.end_micro_batch();
    const auto first = expected.begin() + position * classes;
    check_close(fmt::format("logits at {}", position), logits.to_host(), Values(first, first + classes), 4e-6);
  }
  // The same from tokens that come one by one, behind a few that are followed by padding.
  KvCache cache(kTime);
  for (std::int64_t seen = 0; seen < kTime;) {
    const std::int64_t count = seen == 0 ? 3 : 1, given = seen == 0 ? 5 : 1;
    const std::vector<std::int32_t> next(ids.begin() + seen, ids.begin() + seen + given);
    runtime.begin_micro_batch(Mode::eval, true);
    const Tensor logits = model->next_token_logits(Tensor::from_host(context, {1, given}, next), count - 1, &cache);
    runtime.end_micro_batch();
    seen += count;
    REQUIRE(cache.seen() == seen);
    const auto first = expected.begin() + (seen - 1) * classes;
    check_close(fmt::format("cached logits at {}", seen - 1), logits.to_host(), Values(first, first + classes), 4e-6);
  }
}

TEST_CASE("a Llama has the parameters of its sizes, and an embedding that is not the head does no work for a token") {
  const auto llama = [](bool is_tied) {
    return family_named("llama").make(small({.family = "llama", .kv_heads = 2, .hidden = 20, .tied_head = is_tied}));
  };
  const std::int64_t width = 24, table = 128 * width, qkv = (4 + 2 * 2) * 6 * width,
                     block = 2 * width + qkv + width * width + 3 * 20 * width;
  CHECK(llama(true)->parameter_count() == table + 2 * block + width);
  CHECK(llama(true)->working_parameter_count() == llama(true)->parameter_count());
  CHECK(llama(false)->parameter_count() == 2 * table + 2 * block + width);
  CHECK(llama(false)->working_parameter_count() == llama(true)->parameter_count());
}

TEST_CASE("a window of some layers is refused, where config.json leaves out which, too") {
  const auto refused = [](nlohmann::json document) {
    document.update({{"use_sliding_window", true}, {"sliding_window", 64}});
    return test::coded_message_of([&] {
      family_named("qwen2").from_config(HfConfig(nlohmann::json::parse(document.dump()), "folder/config.json"));
    });
  };
  CHECK(refused({{"num_hidden_layers", 28}}).empty());  // that many have none, unless it says otherwise
  CHECK_THAT(refused({{"num_hidden_layers", 32}}),
             Catch::StartsWith("67: max_window_layers as it is by default is not supported"));
  CHECK_THAT(refused({{"num_hidden_layers", 32}, {"max_window_layers", nullptr}}),
             Catch::StartsWith("67: max_window_layers as it is by default"));
  CHECK_THAT(refused({{"num_hidden_layers", 4}, {"max_window_layers", 2}}),
             Catch::StartsWith("67: max_window_layers = 2 is not supported"));
}

TEST_CASE("a config.json that does not name its padding has that of its family, and an exported one names it") {
  const auto read = [](const char* family, const nlohmann::json& document) {
    return family_named(family).from_config(HfConfig(document, "folder/config.json")).pad_token_id;
  };
  CHECK(read("llama", nlohmann::json::object()) == -1);
  CHECK(read("olmo2", nlohmann::json::object()) == 1);
  CHECK(read("olmoe", nlohmann::json::object()) == 1);
  CHECK(read("phi3", nlohmann::json::object()) == 32000);
  CHECK(read("smollm3", nlohmann::json::object()) == 128004);
  CHECK(read("olmo2", {{"pad_token_id", nullptr}}) == -1);
  CHECK_THAT(test::coded_message_of([&] {
               read("phi3", {{"vocab_size", 320u}});
             }),
             Catch::StartsWith("67: pad_token_id as it is by default is not supported"));
  for (const char* const family : {"llama", "olmo2", "phi3", "smollm3"})
    CHECK(family_named(family).to_config(small({.family = family})).at("pad_token_id").is_null());
}

TEST_CASE("a parameter is made of the matrices that its family's files have, without what pads them") {
  for (const ModelConfig& of :
       {ModelConfig{.family = "gpt2"}, ModelConfig{.family = "llama", .kv_heads = 2},
        ModelConfig{.family = "qwen2", .tied_head = false},
        ModelConfig{.family = "qwen3", .tied_head = false, .head_dim = 8},
        ModelConfig{.family = "mixtral", .experts = 4, .experts_per_token = 2},
        ModelConfig{
            .family = "qwen3_moe", .experts = 4, .experts_per_token = 2, .expert_hidden = 14, .dense_layers = {0}}}) {
    const ModelConfig config = small(of);
    std::map<std::string, std::vector<std::int64_t>> published;
    for (const TensorRule& rule : family_named(config.family).tensor_map(config).rules)
      for (const TensorPart& part : rule.parts) published[rule.parameter].push_back(part.rows);
    const auto model = family_named(config.family).make(config);
    int matrices = 0;
    const std::function<void(const Module&)> check = [&](const Module& module) {
      for (const auto& parameter : module.own_parameters()) {
        if (parameter->shape().rank() != 2) continue;
        CAPTURE(config.family, parameter->name());
        std::vector<std::int64_t> rows = published.at(parameter->name());
        if (rows == std::vector<std::int64_t>{0}) rows.clear();  // all of it
        CHECK(parameter->matrix_rows() == rows);
        ++matrices;
      }
      for (const Module* child : module.children()) check(*child);
    };
    check(*model);
    CHECK(matrices > 4 * config.layers);
  }
  CHECK_THROWS_WITH(
      Attention("a", {.width = 8, .heads = 2}).children().front()->own_parameters().front()->set_matrix_rows({20, 5}),
      Catch::Contains("a.qkv.weight of shape (24, 8) has no matrices of 20, 5 rows"));
}

TEST_CASE("a model of sizes that do not go together is refused with its sizes") {
  CHECK_THROWS_WITH(Attention("a", {.width = 30, .heads = 4}),
                    Catch::Contains("width 30 is not a multiple of 4 heads"));
  CHECK_THROWS_WITH(Attention("a", {.width = 32, .heads = 4, .kv_heads = 3}),
                    Catch::Contains("4 heads share 3 of keys"));
  CHECK_THROWS_WITH(Attention("a", {.width = 12, .heads = 4, .rotary = RotaryOptions{}}),
                    Catch::Contains("heads of 3 elements"));
}

}  // namespace zs::test::families_test
