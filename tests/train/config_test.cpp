#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <set>

#include "model/families/family.h"
#include "model/train/config/config_cuda.h"
#include "model/train/config/config_dataset.h"
#include "model/train/config/config_schema.h"
#include "model/train/config/expand_path.h"
#include "model/train/config/toml_text.h"
#include "model/train/session/session.h"
#include "tests/model/temp_dir.h"
#include "tests/train/config_text.h"

namespace config_test {

using namespace zs;
using namespace zs::test;

TEST_CASE("a small file gets every default from the schema") {
  const Config config = parse_config(kSmall, "folder/small.toml");
  CHECK(config.name == "small");
  CHECK(config.device == "auto");
  CHECK(config.model == Config::Model{"gpt2", "tiny", 4, 4, 128, 256, 256, "gelu_tanh"});
  CHECK(config.data.train == std::vector<std::string>{"corpus.txt"});
  CHECK(config.data.validation.empty());
  CHECK(config.train.sequence == 256);
  CHECK(config.train.beta2 == 0.95);
  CHECK(config.shard == Config::Shard{});
  CHECK(config.comm == Config::Comm{"auto", 1, 300});
  CHECK(config.run.sample_tokens == 200);
}

TEST_CASE("dtypes of outputs and validation follow the parameters', and are not narrower") {
  CHECK(parse_config(kSmall, "small.toml").precision == Config::Precision{"f32", "f32", "f32", "f32"});
  CHECK(parse_config(kSmall, "small.toml", {"precision.param=bf16"}).precision ==
        Config::Precision{"bf16", "f32", "bf16", "bf16"});
  const Overrides wide = {"precision.param=bf16", "precision.output=f32", "precision.validation=f32"};
  CHECK(parse_config(kSmall, "small.toml", wide).precision == Config::Precision{"bf16", "f32", "f32", "f32"});
  for (const char* key : {"precision.output", "precision.validation"}) {
    const Error problem = only_problem(kSmall, {set(key, "bf16")});
    CHECK_THAT(problem.what(),
               Catch::Contains(std::string(key) + " \"bf16\" does not go with precision.param \"f32\""));
  }
}

TEST_CASE("presets are the published sizes and explicit keys override them") {
  const auto [preset, layers, heads, width] = GENERATE(table<std::string, int, int, int>(
      {{"124M", 12, 12, 768}, {"355M", 24, 16, 1024}, {"774M", 36, 20, 1280}, {"1.5B", 48, 25, 1600}}));
  const Overrides tokens = {"model.preset=" + preset, "data.kind=tokens"};
  const Config config = parse_config(kSmall, "small.toml", tokens);
  CHECK(config.model == Config::Model{"gpt2", preset, layers, heads, width, 1024, 50257, "gelu_tanh"});
  CHECK(config.train.sequence == 1024);
  CHECK(config.run.sample_tokens == 0);
  CHECK(parse_config(kSmall, "small.toml", {"model.preset=" + preset, "model.layers=3"}).model.layers == 3);
}

TEST_CASE("a Llama preset brings its family and its sizes, and explicit keys override them") {
  const auto llama_of = [](Overrides overrides) { return parse_config(kSmall, "small.toml", overrides).model; };
  Config::Model tiny{"llama", "llama-tiny", 4, 4, 128, 256, 256, "gelu_tanh", 2, 384, 10000, false};
  CHECK(llama_of({"model.preset=llama-tiny"}) == tiny);
  CHECK(llama_of({"model.preset=llama-tiny", "model.family=llama"}) == tiny);
  const Config::Model large{"llama", "llama-8B", 32, 32, 4096, 8192, 128256, "gelu_tanh", 8, 14336, 500000, false};
  CHECK(llama_of({"model.preset=llama-8B", "data.kind=tokens"}) == large);
  tiny.kv_heads = 4, tiny.hidden = 100, tiny.rotary_base = 500, tiny.tied_head = true;
  CHECK(llama_of({"model.preset=llama-tiny", "model.kv_heads=4", "model.hidden=100", "model.rotary_base=500",
                  "model.tied_head=true"}) == tiny);
}

TEST_CASE("a Llama without a preset has as many key heads as heads, and 8/3 of its width") {
  const Config config = parse_config(kSmall, "small.toml",
                                     {"model.preset=", "model.family=llama", "model.layers=2", "model.heads=6",
                                      "model.width=192", "model.context=64", "data.kind=tokens"});
  CHECK(config.model == Config::Model{"llama", "", 2, 6, 192, 64, 32000, "gelu_tanh", 6, 512, 10000, false});
  CHECK(parse_config(to_toml(config), "again.toml") == config);
  const Config other =
      parse_config(kSmall, "small.toml", {"model.preset=llama-tiny", "model.heads=8", "model.width=256"});
  CHECK(other.model.kv_heads == 8);  // the preset's go with its own heads
  CHECK(other.model.hidden == 768);
}

TEST_CASE("every family has keys that there are, presets that are made, and a name and an architecture of its own") {
  std::set<std::string_view> names, presets, architectures;
  for (const Family* family : families()) {
    CHECK(names.insert(family->name).second);
    CHECK(architectures.insert(family->architecture).second);
    CHECK(find_family(family->name) == family);
    for (const std::string_view key : family->keys) CHECK(find_config_key(key) != nullptr);
    for (const ModelConfig& preset : family->presets) {
      CHECK(presets.insert(preset.preset).second);
      CHECK(preset.family == family->name);
      if (preset.layers > 4) continue;
      const Config config = parse_config(kSmall, "small.toml", {"model.preset=" + preset.preset, "data.kind=tokens"});
      CHECK(config.model.family == family->name);
      CHECK(family->make(config.model)->parameter_count() > 0);
    }
  }
  CHECK(find_family("gpt-2") == nullptr);
  CHECK_THROWS_WITH(family_named("gpt-2"), Catch::Contains("there is no model family \"gpt-2\""));
}

TEST_CASE("a key that some families have is refused in the others, which are named") {
  try {
    parse_config(kSmall, "small.toml", {"model.kv_heads=2"});
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK_THAT(error.what_to_do(),
               Catch::Contains("leave it out, or use model.family = \"llama\" or \"mistral\" or \"qwen2\""));
  }
  CHECK(parse_config(kSmall, "small.toml", {"model.kv_heads=0"}).model.kv_heads == 0);
}

TEST_CASE("a preset brings all that its family has, and heads may be wider or narrower than the width's share") {
  const auto model_of = [](Overrides overrides) { return parse_config(kSmall, "small.toml", overrides).model; };
  const ModelConfig qwen3 = model_of({"model.preset=qwen3-0.6B"});
  CHECK(qwen3.head_dim == 128);
  CHECK(qwen3.norm_eps == 1e-6);
  CHECK(qwen3.rotary_base == 1e6);
  CHECK(qwen3.tied_head);
  const ModelConfig mistral = model_of({"model.preset=mistral-7B", "model.layers=2"});
  CHECK(mistral.window == 4096);
  CHECK(mistral.kv_heads == 8);
  CHECK(model_of({"model.preset=mistral-7B", "model.window=0"}).window == 0);
  const ModelConfig llama = model_of({"model.preset=llama-3.2-1B"});
  CHECK(llama.rotary_scaling == "llama3");
  CHECK(llama.rotary_factor == 32);
  CHECK(model_of({"model.preset=llama-tiny", "model.heads=3", "model.head_dim=10", "model.kv_heads=1"}).head_dim == 10);
  CHECK(model_of({"model.preset=tiny", "model.tied_head=false"}).tied_head == false);
  CHECK(model_of({"model.preset=llama-tiny"}).norm_eps == 1e-5);
  const ModelConfig mixture = model_of({"model.preset=qwen3-30B-A3B", "model.dense_layers=[0, 2]", "model.experts=16"});
  CHECK(mixture.experts == 16);
  CHECK(mixture.experts_per_token == 8);
  CHECK(mixture.expert_hidden == 768);
  CHECK(mixture.dense_layers == std::vector<std::int64_t>{0, 2});
  CHECK_FALSE(model_of({"model.preset=olmoe-1B-7B"}).norm_topk);
  const Config dense = parse_config(kSmall, "small.toml", {"shard.prefetch=3"}),
               experts = parse_config(kSmall, "small.toml", {"shard.prefetch=3", "model.preset=olmoe-1B-7B"});
  CHECK(shard_options(dense).schedule.prefetch == 3);
  CHECK(shard_options(experts).schedule.prefetch == 6);  // units: a block's experts are one
  CHECK(shard_options(experts).schedule.limit == 8);
}

TEST_CASE("the resolved configuration reads back as the same configuration") {
  const Overrides overrides = {"name=odd.name-1",
                               "data.train=[\"a b\", 'c\"d\\e']",
                               "train.lr=0.1234567890123456",
                               "train.eps=1e-300",
                               "run.sample_prompt=\"line\\n\\u0001\\u007f end\"",
                               "train.seed=9223372036854775807",
                               "model.preset=qwen3-30B-A3B",
                               "model.dense_layers=[0, 2]",
                               "shard.prefetch=0"};
  const Config config = parse_config(kSmall, "small.toml", overrides);
  CHECK(config.train.eps == 1e-300);
  CHECK(config.run.sample_prompt == "line\n\x01\x7f end");
  const std::string text = to_toml(config);
  CHECK(parse_config(text, "elsewhere/other.toml") == config);
  for (const ConfigKey& key : config_keys())
    CHECK(text.find(key.name.substr(key.name.find('.') + 1)) != std::string::npos);
}

TEST_CASE("names of any bytes read back from TOML as they were") {
  std::string all;
  for (int byte = 1; byte < 256; ++byte) all += static_cast<char>(byte);
  for (const std::string& name : {std::string("caf\xe9.txt"), std::string("caf\xc3\xa9.txt"),
                                  std::string("\xee\xbe\x80 \xee\xbf\xbf \xee\xbd\xbf"), all}) {
    INFO(toml_string(name));
    Config config = parse_config(kSmall, "small.toml");
    config.data.train = {name, "b"};
    config.run.dir = name;
    CHECK(parse_config(to_toml(config), "small.toml") == config);
    for (const char c : toml_string(name)) CHECK((c >= 0x20 || static_cast<unsigned char>(c) >= 0x80));
  }
  CHECK(toml_string("caf\xe9.txt") == "\"caf\\uEFE9.txt\"");
  CHECK(toml_string("caf\xc3\xa9.txt") == "\"caf\xc3\xa9.txt\"");
}

TEST_CASE("a configuration knows which of its keys were given, and where") {
  const Config config = parse_config(kSmall, "small.toml", {"checkpoint.keep=3"});
  CHECK(config.given.keys.at("checkpoint.keep").starts_with("--set"));
  CHECK(config.given.keys.at("data.train").starts_with("small.toml:"));
  CHECK_FALSE(config.given.contains("checkpoint.every"));
  CHECK(config == parse_config(kSmall, "small.toml"));
}

TEST_CASE("data that was found by a relative name keeps its place in the configuration that is written") {
  const TempDir dir;
  dir.write("cfg/texts/a.txt", "text");
  dir.write("build/b.txt", "text");
  Config config = parse_config(kSmall, "small.toml");
  config.data.train = {"texts", "texts/*.txt", "b.txt", "/absolute", "nowhere"};
  config.data.validation = {"b.txt"};
  const Config found = with_absolute_paths(config, dir / "cfg/small.toml", dir / "build");
  CHECK(found.data.train == std::vector<std::string>{dir / "cfg/texts", dir / "cfg/texts/*.txt", dir / "build/b.txt",
                                                     "/absolute", "nowhere"});
  CHECK(found.data.validation == std::vector<std::string>{dir / "build/b.txt"});
  const std::string here = std::filesystem::current_path().string();
  config.run.export_to = "tuned/";
  config.lora.export_to = "/adapter";
  config.offload.moments = "disk:../disk";
  const Config whole = with_absolute_paths(config, dir / "cfg/small.toml", dir / "build");
  CHECK(whole.run.export_to == here + "/tuned/");
  CHECK(whole.lora.export_to == "/adapter");
  CHECK(whole.offload.moments == "disk:" + std::filesystem::path(here).parent_path().string() + "/disk");
  CHECK(whole.offload.weights == "device");
  std::filesystem::create_directory(dir / "cfg/$later");
  dir.write("cfg/$later/$c.txt", "c");
  config.data.train = {"$later/$c.txt"};  // which is no variable when config.toml is read again
  CHECK(with_absolute_paths(config, dir / "cfg/small.toml", dir / "build").data.train ==
        std::vector<std::string>{dir / "cfg/[$]later/[$]c.txt"});
}

TEST_CASE("a name that begins with $ is meant as it stands where it exists and no such variable is set") {
  const TempDir dir;
  dir.write("$no_such_variable/a.txt", "text");
  CHECK(expand_path(dir / "$no_such_variable/a.txt") == dir / "$no_such_variable/a.txt");
  CHECK_THROWS_AS(expand_path(dir / "$no_such_variable_either/a.txt"), Error);
  dir.write("$HOME/a.txt", "text");
  CHECK(expand_path("$HOME") == std::getenv("HOME"));
}

TEST_CASE("--set overrides the file, the last one wins, and bare words are strings") {
  const Config config =
      parse_config(kSmall, "small.toml",
                   {"train.steps=5", "train.steps = 7", "train.schedule=linear", "train.lr=1e-3",
                    "data.train=my file.txt", "name=123", "shard.reshard_after_forward=false", "train.clip=2"});
  CHECK(config.train.steps == 7);
  CHECK(config.train.schedule == "linear");
  CHECK(config.train.lr == 1e-3);
  CHECK(config.data.train == std::vector<std::string>{"my file.txt"});
  CHECK(config.name == "123");
  CHECK(config.shard.reshard_after_forward.is_off());
  CHECK(config.train.clip == 2.0);
}

TEST_CASE("a strategy decides what it is known by, and reads back as itself") {
  const auto shard_of = [](Overrides overrides) {
    const Config config = parse_config(kSmall, "small.toml", overrides);
    CHECK(parse_config(to_toml(config), "small.toml") == config);
    return config.shard;
  };
  CHECK(shard_of({"shard.strategy=zero3"}) == Config::Shard{});
  CHECK(shard_of({"shard.reshard_after_forward=4"}).reshard_after_forward == Reshard::over(4));
  CHECK(shard_of({"shard.reshard_after_forward=1"}).reshard_after_forward.is_off());
  CHECK_FALSE(shard_of({"shard.strategy=zero1"}).reduce_every_micro_batch);
  CHECK(shard_of({"shard.strategy=zero1"}).reshard_after_forward.is_off());
  CHECK(shard_of({"shard.strategy=zero2"}).reduce_every_micro_batch);
  CHECK(shard_of({"shard.strategy=shard_grad_op"}).reshard_after_forward.is_off());
  CHECK_FALSE(shard_of({"shard.strategy=shard_grad_op"}).reduce_every_micro_batch);
  CHECK(shard_of({"shard.strategy=shard_grad_op", "shard.reduce_every_micro_batch=true"}).reduce_every_micro_batch);
  CHECK(shard_of({"shard.strategy=nested", "shard.group_size=2"}).reshard_after_forward.is_all());
  CHECK(shard_of({"shard.strategy=ddp", "shard.all_reduce_every_micro_batch=true"}).all_reduce_every_micro_batch);
}

TEST_CASE("CRLF files read like others") {
  std::string text;
  for (const char c : kSmall) text += c == '\n' ? std::string("\r\n") : std::string(1, c);
  CHECK(parse_config(text, "small.toml") == parse_config(kSmall, "small.toml"));
}

TEST_CASE("the examples in model/configs are valid") {
  const std::string folder = std::string(ZSHARD_SOURCE_ROOT) + "/model/configs/";
  const Config tiny = load_config(folder + "kjv-tiny.toml");
  for (const int ranks : {1, 2, 3, 4, 8}) CHECK_NOTHROW(check_ranks(tiny, ranks));
  CHECK(tiny.model.vocab == 256);
  CHECK(load_config(folder + "gpt2-124M-tokens.toml").model.vocab == 50257);
  const Config llama = load_config(folder + "kjv-llama-tiny.toml");
  for (const int ranks : {1, 2, 3, 4, 8}) CHECK_NOTHROW(check_ranks(llama, ranks));
  CHECK(llama.model.family == "llama");
}

TEST_CASE("docs/configuration.md holds the tables that the schema generates") {
  const std::string path = std::string(ZSHARD_SOURCE_ROOT) + "/docs/configuration.md";
  const std::string begin = "<!-- keys: generated from model/train/config/config_keys_of_*.cpp -->\n",
                    end = "<!-- end of keys -->";
  const std::string text = test::read_file(path);
  const std::size_t from = text.find(begin), to = text.find(end);
  REQUIRE(from != std::string::npos);
  REQUIRE(to != std::string::npos);
  const std::string generated = "\n" + config_markdown() + "\n";
  if (std::getenv("ZSHARD_UPDATE_DOCS") != nullptr)
    std::ofstream(path) << text.substr(0, from + begin.size()) << generated << text.substr(to);
  INFO("run this test with ZSHARD_UPDATE_DOCS=1 to write the tables anew");
  CHECK(test::read_file(path).find(begin + generated + end) != std::string::npos);
}

TEST_CASE("the help lists every key with its default and choices") {
  const std::string help = config_help();
  for (const ConfigKey& key : config_keys()) CHECK(help.find("  " + std::string(key.name) + " ") != std::string::npos);
  CHECK(help.find("number: above 0, at most 1000000000000; default 0.0006") != std::string::npos);
  CHECK(help.find("\"cosine\", \"linear\", \"constant\", \"wsd\"") != std::string::npos);
}

TEST_CASE("keys of cuda that are not as by default have no effect where the device is no GPU") {
  Config config =
      parse_config(kSmall, "small.toml", {"cuda.fused_gelu=true", "cuda.tf32=true", "cuda.transport=staged"});
  config.device = "cpu";
  CHECK(unused_cuda_keys(config) == std::vector<std::string>{"cuda.tf32", "cuda.transport"});
  config.device = "cuda";
  CHECK(unused_cuda_keys(config).empty());
}

TEST_CASE("data is looked up in the current folder, beside the file, then in the build folder") {
  const Config config = parse_config(kSmall, "small.toml");
  CHECK(dataset_options(config, "a/small.toml", "build").folders == std::vector<std::string>{"", "a", "build"});
  CHECK(dataset_options(config, "small.toml", "build").folders == std::vector<std::string>{"", "build"});
  const DatasetOptions options = dataset_options(config, "build/small.toml", "build");
  CHECK(options.folders == std::vector<std::string>{"", "build"});
  CHECK(options.sequence == 256);
  CHECK(options.vocab == 256);
  CHECK(options.seed == 1337);
}

TEST_CASE("a time limit is a number of seconds or hours, minutes and seconds, in a file and in --set") {
  const auto [spelled, seconds] = GENERATE(table<std::string, double>({{"3600", 3600},
                                                                       {"1.5", 1.5},
                                                                       {"\"90\"", 90},
                                                                       {"\"1:30:00\"", 5400},
                                                                       {"\"100:00:01\"", 360001},
                                                                       {"01:30:05", 5405},
                                                                       {"0", 0}}));
  CAPTURE(spelled);
  const Config config = parse_config(kSmall + "time_limit = " + spelled + "\n", "small.toml");
  CHECK(config.train.time_limit.value == seconds);
  CHECK(parse_config(kSmall, "small.toml", {"train.time_limit=" + spelled}).train.time_limit.value == seconds);
  CHECK(parse_config(to_toml(config), "small.toml") == config);
  CHECK(parse_config(kSmall, "small.toml", {"train.time_limit=48:00:00"}).train.time_limit.value == 172800);
  CHECK(parse_config(kSmall, "small.toml").train.time_limit.value == 0);
}

TEST_CASE("epochs take the place of steps, once the data is known") {
  const std::string text = "model.preset = \"tiny\"\ndata.train = \"a\"\ntrain.global_batch = 8\n";
  const auto resolved = [&](const std::string& epochs, std::int64_t sequences, Overrides more = {}) {
    more.push_back("train.epochs=" + epochs);
    Config config = parse_config(text, "a.toml", more);
    resolve_by_data(config, 77, sequences);
    CHECK(config.train.epochs == 0);
    CHECK(parse_config(to_toml(config), "again.toml") == config);
    return config.train;
  };
  CHECK(resolved("3", 16).steps == 6);
  CHECK(resolved("3", 17).steps == 7);
  CHECK(resolved("0.1", 8).steps == 1);
  CHECK(resolved("3", 16).sequence == 256);
  CHECK_THROWS_WITH(resolved("3", 16, {"train.schedule=wsd", "train.warmup=6"}), Catch::Contains("overlaps"));
  CHECK_THROWS_WITH(resolved("1000000", 1 << 30), Catch::Contains("make it smaller"));
  CHECK_THROWS_WITH(parse_config(text, "a.toml"),
                    Catch::Contains("train.steps is missing") && Catch::Contains("epochs"));
  CHECK_THROWS_WITH(parse_config(text, "a.toml", {"train.steps=3", "train.epochs=2"}),
                    Catch::Contains("train.epochs = 2 does not go with train.steps"));
}

TEST_CASE("a model of a folder has the defaults of fine-tuning, and another one those it had") {
  const std::string folder = "model.path=" ZSHARD_SOURCE_ROOT "/tests/data/huggingface/llama";
  const Overrides documents = {"data.format=lines"}, validated = {"data.format=lines", "run.validate_every=5"};
  const auto with = [&](Overrides more) {
    more.push_back(folder);
    return parse_config("data.train = \"a\"\ntrain.steps = 3\ntrain.global_batch = 8\n", "a.toml", more);
  };
  CHECK(parse_config(kSmall, "a.toml").train.lr == 6e-4);
  CHECK(parse_config(kSmall, "a.toml").train.weight_decay == 0.1);
  CHECK(parse_config(kSmall, "a.toml").data.validation_fraction == 0.1);
  CHECK(parse_config(kSmall, "a.toml", documents).data.validation_fraction == 0);
  CHECK(parse_config(kSmall, "a.toml", documents).train.sequence == 256);
  CHECK(parse_config(kSmall, "a.toml", validated).data.validation_fraction == 0.1);
  CHECK(with({}).train.lr == 2e-5);
  CHECK(with({"lora.rank=2", "lora.targets=all-linear"}).train.lr == 2e-4);
  CHECK(with({"train.lr=1"}).train.lr == 1);
  CHECK(with({}).train.weight_decay == 0);
  CHECK(with({}).data.validation_fraction == 0);
  CHECK(with({"run.validate_every=5"}).data.validation_fraction == 0.1);
  CHECK(with({}).train.sequence == std::min<std::int64_t>(with({}).model.context, 2048));
  Config config = with(documents);
  CHECK(config.train.sequence == 0);
  resolve_by_data(config, 77, 5);
  CHECK(config.train.sequence == 77);
  CHECK(with({}).run.export_dtype == "f32");
}

}  // namespace config_test
