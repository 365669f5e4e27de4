// Adapters of low rank: which products have them, and what a plan holds and moves for them and for the frozen rest.
#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <set>

#include "model/families/family.h"
#include "model/lora/saved_modules.h"
#include "model/train/plan/plan.h"
#include "model/train/session/session.h"
#include "tests/train/config_text.h"

namespace zs::test::lora_test {
namespace {

const std::string kLlama = R"(
[model]
family = "llama"
layers = 12
heads = 4
kv_heads = 2
width = 64
hidden = 160
context = 64
[data]
train = "corpus.txt"
[train]
steps = 100
global_batch = 24
sequence = 32
)";

std::vector<std::string> modules_of(const std::vector<LoraProduct>& products) {
  std::vector<std::string> modules;
  for (const LoraProduct& product : products) modules.push_back(product.module);
  return modules;
}

Config with_lora(const Overrides& more = {}) {
  Overrides overrides = {"lora.rank=4", "lora.targets=[\"q_proj\", \"down_proj\"]"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return parse_config(kLlama, "folder/small.toml", overrides);
}

}  // namespace

TEST_CASE("a pattern names products by their names in the files, by any last parts of them") {
  const auto products = lora_products(parse_config(kLlama, "small.toml").model);
  CHECK(products.size() == 12 * 7 + 1);  // the embedding
  CHECK(matching(products, {"all-linear"}).size() == 12 * 7);
  CHECK(matching(products, {"embed_tokens"}).front().a() == "token_embedding.lora.embed_tokens.lora_embedding_A");
  CHECK(matching(products, {"q_proj"}).size() == 12);
  CHECK(matching(products, {"*_proj"}).size() == 12 * 7);
  CHECK(matching(products, {"mlp.*", "k_proj"}).size() == 12 * 4);
  CHECK(modules_of(matching(products, {"layers.1.self_attn.q_proj", "layers.1.self_attn.v_proj"})) ==
        std::vector<std::string>{"model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.v_proj"});
  const auto value = matching(products, {"0.self_attn.v_proj"});
  REQUIRE(value.size() == 1);  // not of layer 10
  CHECK(value[0].parameter == "blocks.0.attention.qkv.weight");
  CHECK(value[0].row == 96);
  CHECK(value[0].rows == 32);
  CHECK(value[0].columns == 64);
  CHECK(value[0].a() == "blocks.0.lora.self_attn.v_proj.lora_A.weight");
}

TEST_CASE("the shortest patterns match the same products and no others") {
  const auto products = lora_products(parse_config(kLlama, "small.toml").model);
  const auto shortest = [&](const std::vector<std::string>& patterns) {
    const auto modules = modules_of(matching(products, patterns));
    const auto found = shortest_patterns(products, modules);
    CHECK(modules_of(matching(products, found)) == modules);
    return found;
  };
  CHECK(shortest({"q_*", "v_proj"}) == std::vector<std::string>{"q_proj", "v_proj"});
  CHECK(shortest({"layers.11.mlp.up_proj"}) == std::vector<std::string>{"11.mlp.up_proj"});
  ModelConfig gpt2 = parse_config(kSmall, "small.toml").model;
  const auto of_gpt2 = lora_products(gpt2);
  const auto modules = modules_of(matching(of_gpt2, {"attn.c_proj"}));
  CHECK(shortest_patterns(of_gpt2, modules) == std::vector<std::string>{"attn.c_proj"});
  CHECK(of_gpt2.front().is_transposed);
}

TEST_CASE("what is wrong with the keys of adapters is said in one line") {
  const auto problem = [](const Overrides& overrides) { return only_problem(kLlama, overrides); };
  CHECK(problem({"lora.targets=q_proj"}).what_happened().starts_with("lora.rank is 0"));
  CHECK(problem({"lora.rank=4"}).what_to_do() ==
        "name products of the model: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, embed_tokens");
  const Error unmatched = problem({"lora.rank=4", "lora.targets=[\"q_prj\"]"});
  CHECK(unmatched.what_happened() ==
        "lora.targets: no product of the blocks, nor the embedding, is called like \"q_prj\"");
  CHECK(unmatched.what_to_do().starts_with("the nearest are q_proj, "));
  CHECK(problem({"lora.rank=4", "lora.targets=lm_head"}).what_happened().ends_with("called like \"lm_head\""));
  CHECK(problem({"lora.rank=33", "lora.targets=k_proj"}).what_happened() ==
        "lora.rank 33 is more than model.layers.0.self_attn.k_proj has, (32, 64)");
  CHECK(problem({"lora.rank=4", "lora.targets=k_proj", "lora.dropout=1"}).what_happened() == "lora.dropout is 1");
  CHECK(problem({"lora.rank=4", "lora.targets=k_proj", "lora.rank_pattern=k_proj"}).what_happened() ==
        "lora.rank_pattern has \"k_proj\"");
  CHECK(problem({"lora.rank=4", "lora.targets=k_proj", "lora.rank_pattern=k_proj=2.5"}).what_happened() ==
        "lora.rank_pattern has \"k_proj=2.5\"");
  CHECK(problem({"lora.rank=4", "lora.targets=k_proj", "lora.alpha_pattern=q_proj=2"}).what_happened() ==
        "lora.alpha_pattern: no target is called like \"q_proj\"");
  CHECK(problem({"lora.rank=4", "lora.targets=k_proj", "lora.rank_pattern=0.self_attn.k_proj=40"}).what_happened() ==
        "lora.rank_pattern 40 is more than model.layers.0.self_attn.k_proj has, (32, 64)");
  const Error unsaved = problem({"lora.rank=4", "lora.targets=k_proj", "lora.modules_to_save=v_proj"});
  CHECK(unsaved.what_happened() == "lora.modules_to_save: no module outside of the blocks is called like \"v_proj\"");
  CHECK(unsaved.what_to_do().starts_with("this model has embed_tokens, norm, lm_head;"));
  CHECK(problem({"lora.modules_to_save=lm_head"}).what_happened().starts_with("lora.rank is 0"));
  CHECK(with_lora().lora.alpha == 4);
}

TEST_CASE("targets have ranks and scales of their own where a pattern says so, the first that matches") {
  const auto targets_of = [](const Overrides& more) {
    const Config config = with_lora(more);
    std::map<std::string, std::pair<std::int64_t, double>> found;
    for (const LoraTarget& target : lora_targets(config.model, config.lora))
      found[target.module.substr(std::string("model.layers.").size())] = {target.rank, target.scale};
    return found;
  };
  CHECK(targets_of({"lora.alpha=16"}).at("3.self_attn.q_proj") == std::pair(std::int64_t{4}, 4.0));
  CHECK(targets_of({"lora.alpha=16", "lora.rslora=true"}).at("3.self_attn.q_proj") == std::pair(std::int64_t{4}, 8.0));
  const auto targets =
      targets_of({"lora.alpha=16", "lora.rslora=true", "lora.rank_pattern=[\"layers.1.*=16\", \"q_proj=1\"]",
                  "lora.alpha_pattern=down_proj=2"});
  CHECK(targets.at("0.self_attn.q_proj") == std::pair(std::int64_t{1}, 16.0));
  CHECK(targets.at("1.self_attn.q_proj") == std::pair(std::int64_t{16}, 4.0));
  CHECK(targets.at("1.mlp.down_proj") == std::pair(std::int64_t{16}, 0.5));
  CHECK(targets.at("2.mlp.down_proj") == std::pair(std::int64_t{4}, 1.0));
}

TEST_CASE("modules that are trained whole are units with gradients and moments, beside frozen ones") {
  const Config config = with_lora({"lora.modules_to_save=[\"embed_tokens\", \"lm_head\", \"norm\"]"});
  std::map<std::string, bool> is_frozen;
  for (const TrainPlan::Unit& unit : make_plan(config, 0, 2).units) is_frozen[unit.name] = unit.is_frozen;
  for (const char* trained : {"token_embedding", "head", "norm", "blocks.3.lora"}) CHECK_FALSE(is_frozen.at(trained));
  CHECK(is_frozen.at("blocks.3"));
  const auto names = [&](std::vector<std::string> patterns) {
    LoraConfig lora = config.lora;
    lora.modules_to_save = std::move(patterns);
    return peft_names(config.model, saved_modules(config.model, lora));
  };
  CHECK(names({"model.embed_tokens", "norm"}) == std::vector<std::string>{"embed_tokens", "model.norm"});
}

TEST_CASE("a plan with adapters has gradients, moments and reductions of these alone, in f32 beside bf16") {
  const std::string strategy = GENERATE("zero3", "shard_grad_op", "zero2", "zero1", "ddp", "hsdp", "nested");
  const bool has_blocks = GENERATE(true, false);
  Overrides more = {"precision.param=bf16", "shard.strategy=" + strategy,
                    std::string("shard.units=") + (has_blocks ? "block" : "model")};
  if (strategy == "hsdp" || strategy == "nested") more.push_back("shard.group_size=2");
  const Config config = with_lora(more);
  const TrainPlan plan = make_plan(config, 0, 4);
  std::set<std::string> frozen;
  std::int64_t trained = 0, held = 0;
  for (const TrainPlan::Unit& unit : plan.units) {
    if (unit.is_frozen) frozen.insert(unit.name);
    if (!unit.is_frozen) trained += unit.layout->numel(), held += unit.layout->held_elems();
    CHECK(unit.is_frozen != unit.name.ends_with(".lora"));
  }
  CHECK(frozen.size() == (has_blocks ? 13 : 1));
  CHECK(trained == 12 * 4 * (64 + 64 + 160 + 64));
  std::int64_t moments = 0, gradients = 0;
  for (const PlannedBuffer& buffer : plan.buffers) {
    const bool is_of_training = buffer.label == "moments" || buffer.label == "grad_shard" ||
                                buffer.label == "full_grad" || buffer.label == "grad_sum";
    INFO(buffer.label << " of " << buffer.owner);
    CHECK_FALSE((is_of_training && frozen.contains(buffer.owner)));
    if (buffer.label == "moments") moments += buffer.bytes;
    if (buffer.label == "grad_shard") gradients += buffer.bytes;
    CHECK_FALSE((buffer.label == "param_shard" && !frozen.contains(buffer.owner)));  // a bf16 copy
  }
  CHECK(gradients == 4 * held);
  CHECK(moments == 8 * held);
  const auto reduced = std::count_if(plan.micro_batch.begin(), plan.micro_batch.end(), [&](const Action& action) {
    const bool is_reduction = action.kind == Action::Kind::reduce || action.kind == Action::Kind::begin_gradient;
    CHECK_FALSE((is_reduction && frozen.contains(plan.units[static_cast<std::size_t>(action.unit)].name)));
    return action.kind == Action::Kind::reduce;
  });
  CHECK(reduced == 12);
}

TEST_CASE("an adapter that lora.path names is refused beside a plan, as one that lora.rank asks for") {
  const std::string data = ZSHARD_SOURCE_ROOT "/tests/data/";
  const Overrides overrides = {"model.path=" + data + "huggingface/gpt2", "lora.path=" + data + "lora/gpt2"};
  const std::string text = "[data]\nkind = \"tokens\"\ntrain = \"a.bin\"\n[train]\nsteps = 1\nglobal_batch = 1\n";
  CHECK(parse_config(text, "small.toml", overrides).lora.is_on());
  Overrides by_plan = overrides;
  by_plan.push_back("plan.apply=blocks.*");
  CHECK_THAT(only_problem(text, by_plan).what(), Catch::Contains("lora.path does not go with plan.apply"));
}

TEST_CASE("norms that magnitudes are divided by are computed once while tokens follow each other") {
  Config config = with_lora({"lora.dora=true", "model.layers=2"});
  const auto world = make_single_world({});
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Session session(*device, *world, config, Session::Use::inference);
  begin_adapters(session);
  device->trace().start();
  const auto norms = [&] {
    const auto entries = device->trace().entries();
    return std::count_if(entries.begin(), entries.end(),
                         [](const TraceEntry& entry) { return entry.op.name == "rows_of"; });
  };
  KvCache cache(8);
  session.next_token_logits({1, 2}, &cache);
  const auto first = norms();
  CHECK(first > 0);
  const std::vector<float> cached = session.next_token_logits({3}, &cache);
  CHECK(norms() == first);
  const std::vector<float> whole = session.next_token_logits({1, 2, 3});
  CHECK(norms() == 2 * first);
  for (std::size_t i = 0; i < whole.size(); ++i) CHECK(cached[i] == Approx(whole[i]).margin(1e-5));
  cache.clear();
  session.next_token_logits({1}, &cache);
  CHECK(norms() == 3 * first);
}

}  // namespace zs::test::lora_test
