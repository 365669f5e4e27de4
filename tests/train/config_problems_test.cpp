// What is wrong with a configuration, and how it is told.
#include <catch2/catch.hpp>

#include "model/train/config/config_plan.h"
#include "model/train/config/config_schema.h"
#include "model/train/config/pattern_entries.h"
#include "runtime/base/name_pattern.h"
#include "tests/model/temp_dir.h"
#include "tests/train/config_text.h"

using namespace zs;
using namespace zs::test;

TEST_CASE("a --set that cannot be read is refused") {
  CHECK(only_problem(kSmall, {"train.steps"}).what_happened() == "no '=' in --set");
  CHECK(only_problem(kSmall, {"train.steps="}).what_happened() == "train.steps is empty");
  CHECK(only_problem(kSmall, {"train.steps=many"}).what_happened() == "train.steps is many");
  CHECK(only_problem(kSmall, {"train.steps=1\ntrain.lr=3"}).where().starts_with("--set train.steps"));
  CHECK(only_problem(kSmall, {"train={steps=3}"}).what_happened() == "train is a table");
  CHECK(only_problem(kSmall, {"train.stebs=3"}).what_to_do() == "did you mean train.steps?");
}

TEST_CASE("an unknown key is refused with its line and the nearest known key") {
  const Error error = only_problem(kSmall + "warmpu = 3\n");
  CHECK(error.what_happened() == "unknown key train.warmpu");
  CHECK(error.where() == "folder/small.toml:9");
  CHECK(error.what_to_do() == "did you mean train.warmup?");
}

TEST_CASE("a key that has another name now is refused with that") {
  CHECK(only_problem(kSmall + "[comm]\nshadow_ms = 2\n").what_to_do() == "it is called comm.race_check_ms now");
}

TEST_CASE("nearest keys are found across tables and not invented") {
  CHECK(nearest_config_key("steps") == "train.steps");
  CHECK(nearest_config_key("trian.lr") == "train.lr");
  CHECK(nearest_config_key("model.head") == "model.heads");
  CHECK(nearest_config_key("shard.prefetc") == "shard.prefetch");
  CHECK_FALSE(nearest_config_key("completely.different"));
  CHECK_FALSE(nearest_config_key(std::string(1 << 20, 'x')));
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("", "abc") == 3);
}

TEST_CASE("all problems are reported at once, at most twenty") {
  const auto problems = problems_of(
      "nmae = 1\n[train]\nsteps = -1\nlr = nan\nglobal_batch = \"x\"\n[model]\nheads = 3\npreset = \"tiny\"\n");
  std::string all;
  for (const Error& problem : problems) all += std::string(problem.what()) + "\n";
  INFO(all);
  CHECK(problems.size() == 6);
  for (const char* part :
       {"unknown key nmae", "train.steps is -1 (folder/small.toml:3)", "train.lr is nan",
        "train.global_batch is a string", "data.train is missing", "model.heads 3 does not divide model.width 128"})
    CHECK(all.find(part) != std::string::npos);

  std::string many = kSmall;
  for (int i = 0; i < 50; ++i) many += "zz" + std::to_string(i) + " = 1\n";
  CHECK(problems_of(many).size() == ConfigError::kMaxProblems);
}

TEST_CASE("every key refuses values outside its range, of the wrong type, and nan") {
  for (const ConfigKey& key : config_keys()) {
    Config config;
    const std::size_t type = key.slot(config).index();
    INFO(key.name);
    const auto is_refused = [&](const std::string& value) {
      for (const Error& problem : problems_of(kSmall, {set(key.name, value)}))
        if (problem.what_happened().starts_with(std::string(key.name) + " ")) return true;
      return false;
    };
    const bool is_number = type == 1 || type == 2;
    const bool has_max = key.range.max < std::numeric_limits<double>::infinity();
    const std::string unit = type == 1 ? "{:.0f}" : "{}";
    if (is_number && std::isfinite(key.range.min))
      CHECK(is_refused(fmt::format(fmt::runtime(unit), key.range.min_open ? key.range.min : key.range.min - 1)));
    if (is_number && has_max)
      CHECK(is_refused(fmt::format(fmt::runtime(unit), key.range.max_open ? key.range.max : key.range.max + 1)));
    if (is_number) {
      for (const char* value :
           {"nan", "inf", "-inf", "1e30", "99999999999999999999", "true", "\"1\"", "[1]", "1979-05-27", "{a = 1}"})
        CHECK(is_refused(value));
    } else if (type == 0) {
      for (const char* value : {"1", "\"true\"", "[]", "yes"}) CHECK(is_refused(value));
    } else if (type == 4) {
      for (const char* value : {"[1]", "[\"\"]", "\"\"", "[[\"a\"]]"}) CHECK(is_refused(value));
    } else if (!key.choices.empty()) {
      CHECK(is_refused("nonsense"));
    }
    if (type == 5) {
      for (const char* value : {"0", "-1", "1.5", "\"true\"", "99999999999"}) CHECK(is_refused(value));
    }
    if (type == 6) {
      for (const char* value :
           {"-1", "nan", "inf", "1e30", "true", "[1]", "1979-05-27", "soon", "\"\"", "1:30", "1:60:00", "1:00:60",
            "1:00:00:", ":1:00:00", "\"1:-1:00\"", "-1:00:00", "1::00", "99999999999999:00:00", "1:00:00:00"})
        CHECK(is_refused(value));
    }
    if (type == 7) {
      for (const char* value : {"1", "\"1\"", "[0]", "[-1]", "[1, nan]", "[1, \"1\"]", "[[1]]", "[1e7]", "true"})
        CHECK(is_refused(value));
    }
    if (type == 8) {
      for (const char* value :
           {"-1", "1.5", "nan", "1e30", "99999999999999999999", "true", "\"1\"", "\"\"", "Auto", "[1]", "[\"auto\"]"})
        CHECK(is_refused(value));
      CHECK(is_refused(fmt::format("{:.0f}", key.range.max + 1)));
    }
    if (type == 1) CHECK(is_refused("1.5"));
    if (type == 3 || type == 4) CHECK(is_refused("\"a\\u0000b\""));
    if (type == 3) CHECK(is_refused(std::string(5000, 'x')));
  }
}

TEST_CASE("every key accepts both ends of its range and each of its choices") {
  for (const ConfigKey& key : config_keys()) {
    const auto is_accepted = [&](const std::string& value) {
      for (const Error& problem : problems_of(kSmall, {set(key.name, value)}))
        if (problem.what_happened().starts_with(fmt::format("{} is ", key.name))) return false;
      return true;
    };
    Config config;
    const std::size_t type = key.slot(config).index();
    INFO(key.name);
    for (const auto choice : key.choice_list()) CHECK(is_accepted(std::string(choice)));
    if (type == 8) {
      for (const char* value : {"auto", "\"auto\"", "0", "3"}) CHECK(is_accepted(value));
    }
    if (type != 1 && type != 2) continue;
    const std::string unit = type == 1 ? "{:.0f}" : "{}";
    if (!key.range.min_open) CHECK(is_accepted(fmt::format(fmt::runtime(unit), key.range.min)));
    if (!key.range.max_open && std::isfinite(key.range.max))
      CHECK(is_accepted(fmt::format(fmt::runtime(unit), key.range.max)));
  }
}

TEST_CASE("keys that contradict each other are refused") {
  const auto [overrides, message] = GENERATE(table<Overrides, std::string>({
      {{"model.heads=3"}, "model.heads 3 does not divide model.width 128"},
      {{"model.family=llama"}, "model.preset \"tiny\" is a gpt2, not a llama"},
      {{"model.preset=llama-tiny", "model.family=gpt2"}, "model.preset \"llama-tiny\" is a llama, not a gpt2"},
      {{"model.kv_heads=2"}, "model.kv_heads does not go with model.family \"gpt2\""},
      {{"model.window=4"}, "model.window does not go with model.family \"gpt2\""},
      {{"model.pad_token_id=3"}, "model.pad_token_id does not go with model.family \"gpt2\""},
      {{"model.preset=llama-tiny", "model.vocab=300", "model.pad_token_id=300"},
       "model.pad_token_id 300 is not below model.vocab 300"},
      {{"model.preset=llama-tiny", "model.head_dim=7"}, "heads of 7 elements have no halves to turn"},
      {{"model.preset=llama-tiny", "model.rotary_scaling=llama3", "model.rotary_low=4"},
       "model.rotary_low 4 is not below model.rotary_high 4"},
      {{"model.preset=llama-tiny", "model.activation=gelu_erf"},
       "model.activation does not go with model.family \"llama\""},
      {{"model.preset=llama-tiny", "model.kv_heads=3"}, "model.kv_heads 3 does not divide model.heads 4"},
      {{"model.preset=llama-tiny", "model.heads=128"}, "heads of 1 elements have no halves to turn"},
      {{"model.vocab=255"}, "model.vocab 255 is too small for bytes"},
      {{"train.sequence=257"}, "train.sequence 257 is longer than model.context 256"},
      {{"train.micro_batch=5"}, "train.global_batch 24 is not a multiple of train.micro_batch 5"},
      {{"precision.reduce=bf16"}, "precision.reduce \"bf16\" does not go with precision.param \"f32\""},
      {{"precision.rounding=stochastic"}, "precision.rounding \"stochastic\" does not go with precision.param \"f32\""},
      {{"shard.compress_reduce=int8", "train.deterministic=true"},
       "shard.compress_reduce = \"int8\" does not go with train.deterministic"},
      {{"cuda.graph=true"}, "cuda.graph = true does not go with device = \"auto\""},
      {{"cuda.graph=true", "device=cuda", "model.attention_dropout=0.1"},
       "cuda.graph = true does not go with dropout, whose random numbers are others in each step"},
      {{"model.preset=llama-tiny", "model.dropout=0.1"}, "model.dropout does not go with model.family \"llama\""},
      {{"cuda.attention=cudnn", "train.deterministic=true"},
       "cuda.attention = \"cudnn\" does not go with train.deterministic"},
      {{"cuda.graph=true", "device=cpu"}, "cuda.graph = true does not go with device = \"cpu\""},
      {{"data.field=body"}, "data.field = \"body\" does not go with data.format = \"stream\""},
      {{"data.format=lines", "data.prompt_field=q"},
       "data.prompt_field = \"q\" does not go with data.format = \"lines\""},
      {{"data.overlong=split"}, "data.overlong = \"split\" does not go with data.format = \"stream\""},
      {{"data.format=jsonl", "data.field="}, "data.field is empty"},
      {{"data.format=jsonl", "data.prompt_field=text"}, "data.prompt_field and data.field are both \"text\""},
      {{"data.format=files", "data.kind=tokens"}, "data.format = \"files\" does not go with data.kind = \"tokens\""},
      {{"data.format=lines", "cuda.graph=true", "device=cuda"},
       "cuda.graph = true does not go with data.format = \"lines\""},
      {{"data.weights=[1, 2]"}, "data.weights has 2, and data.train 1"},
      {{"data.train=['a', 'b']", "data.weights=[1, 0.00005]"},
       "data.weights has 5e-05, which is less than 1/10000 of all"},
      {{"data.weights=[1]", "data.validation_fraction=0.2"},
       "data.validation_fraction = 0.2 does not go with data.weights"},
      {{"run.validate_every=5", "data.validation_fraction=0"},
       "run.validate_every is set, but there is no validation data"},
      {{"train.schedule=wsd", "train.decay=1", "train.warmup=10"},
       "the decay of 100 steps (train.decay 1 of 100) overlaps the warm-up of 10"},
      {{"train.schedule=wsd", "train.decay=0.29", "train.warmup=72"},
       "the decay of 29 steps (train.decay 0.29 of 100) overlaps the warm-up of 72"},
      {{"comm.transport=mpi", "comm.ranks=2"}, "comm.ranks 2 does not go with comm.transport = \"mpi\""},
      {{"model.preset="}, "model.layers is missing"},
      {{"train.steps=1000000000", "train.global_batch=1048576", "train.sequence=1048576", "model.context=1048576"},
       "steps x batch x sequence is 1.1e+21 tokens"},
      {{"shard.units=model", "shard.unit_mib=2.5"}, "shard.unit_mib = 2.5 does not go with shard.units \"model\""},
      {{"shard.group_size=2"}, "shard.group_size = 2 does not go with shard.strategy \"zero3\""},
      {{"shard.strategy=zero1", "shard.reduce_every_micro_batch=true"},
       "shard.reduce_every_micro_batch = true does not go with shard.strategy \"zero1\""},
      {{"shard.strategy=zero2", "shard.reduce_every_micro_batch=false"},
       "shard.reduce_every_micro_batch = false does not go with shard.strategy \"zero2\""},
      {{"shard.strategy=shard_grad_op", "shard.reshard_after_forward=true"},
       "shard.reshard_after_forward = true does not go with shard.strategy \"shard_grad_op\""},
      {{"shard.strategy=nested", "shard.group_size=4", "shard.reshard_after_forward=2"},
       "shard.reshard_after_forward = 2 does not go with shard.strategy \"nested\""},
      {{"checkpoint.background=true"}, "checkpoint.background = true without regular checkpoints"},
      {{"offload.accumulator=host"},
       "offload.accumulator = \"host\" does not go with shard.strategy \"zero3\", where every micro-batch is reduced "
       "to "
       "the master's gradient"},
      {{"offload.accumulator=host", "shard.strategy=zero1", "train.deterministic=true"},
       "offload.accumulator = \"host\" does not go with shard.strategy \"zero1\" and train.deterministic, where every "
       "micro-batch is reduced to the master's gradient"},
      {{"offload.weights=disk:/x", "precision.param=bf16", "precision.validation=f32"},
       "offload.weights = \"disk:/x\" does not go with precision.validation \"f32\""},
      {{"offload.weights=disk:/x"}, "offload.weights = \"disk:/x\" does not go with precision.param \"f32\""},
      {{"offload.moments=disk:/x", "train.optimizer=sgd"},
       "offload.moments = \"disk:/x\" does not go with train.optimizer \"sgd\" without momentum"},
      {{"offload.moments=disk:"}, "offload.moments is \"disk:\""},
      {{"offload.moments=tape"}, "offload.moments is \"tape\""},
      {{"offload.gradients=disk:/x"}, "offload.gradients is \"disk:/x\""},
      {{"offload.moments=host", "train.optimizer=sgd"},
       "offload.moments = \"host\" does not go with train.optimizer \"sgd\" without momentum"},
      {{"offload.moments=host", "cuda.graph=true", "device=cuda"},
       "cuda.graph = true does not go with what the host keeps (offload)"},
      {{"offload.update=host", "offload.weights=host", "offload.moments=host"},
       "offload.update = \"host\" does not go with offload.gradients = \"device\""},
      {{"offload.update=host", "offload.weights=disk:/x", "precision.param=bf16", "offload.gradients=host",
        "offload.moments=host"},
       "offload.update = \"host\" does not go with offload.weights = \"disk:/x\""},
      {{"offload.update=host", "offload.weights=host", "offload.gradients=host"},
       "offload.update = \"host\" does not go with offload.moments = \"device\""},
      {{"offload.cpu_link_gbs=2", "device=cuda"}, "offload.cpu_link_gbs does not go with device = \"cuda\""},
      {{"train.momentum=0.9"}, "train.momentum = 0.9 does not go with train.optimizer \"adamw\""},
      {{"train.nesterov=true"}, "train.nesterov = true does not go with train.optimizer \"adamw\""},
      {{"train.optimizer=sgd", "train.beta1=0.5"}, "train.beta1 = 0.5 does not go with train.optimizer \"sgd\""},
      {{"train.optimizer=sgd", "train.beta2=0.5"}, "train.beta2 = 0.5 does not go with train.optimizer \"sgd\""},
      {{"train.optimizer=sgd", "train.eps=0.5"}, "train.eps = 0.5 does not go with train.optimizer \"sgd\""},
      {{"train.optimizer=sgd", "train.nesterov=true"}, "train.nesterov = true without a momentum"},
      {{"train.optimizer=lion", "train.eps=0.5"}, "train.eps = 0.5 does not go with train.optimizer \"lion\""},
      {{"train.optimizer=lion", "train.momentum=0.5"},
       "train.momentum = 0.5 does not go with train.optimizer \"lion\""},
      {{"train.muon=blocks.*"}, "train.muon = [\"blocks.*\"] does not go with train.optimizer \"adamw\""},
      {{"train.optimizer=muon", "train.muon=[]"}, "train.muon names no matrix"},
      {{"train.optimizer=muon", "train.momentum=0", "train.nesterov=true"}, "train.nesterov = true without a momentum"},
      {{"train.patience=2"}, "train.patience = 2 without a validation"},
      {{"checkpoint.keep_best=true"}, "checkpoint.keep_best = true without a validation"},
      {{"run.validate_first=true"}, "run.validate_first = true without a validation"},
      {{"train.patience=-1"}, "train.patience is -1"},
      {{"run.validate_average=true"}, "run.validate_average = true without an average of the weights"},
      {{"train.average=1"}, "train.average is 1"},
      {{"run.lost_updates_every=1", "offload.gradients=host"},
       "run.lost_updates_every does not go with weights or gradients that the host keeps (offload)"},
      {{"run.lost_updates_every=1", "cuda.graph=true", "device=cuda"},
       "run.lost_updates_every does not go with cuda.graph = true"},
      {{"train.optimizer=adamw8bit", "train.momentum=0.9"},
       "train.momentum = 0.9 does not go with train.optimizer \"adamw8bit\""},
      {{"train.average=0.5", "offload.moments=host"},
       "train.average = 0.5 does not go with what the host keeps (offload)"},
      {{"train.optimizer=adam"}, "train.optimizer is \"adam\""},
      {{"train.groups=['*.bias']"}, "train.groups has \"*.bias\""},
      {{"train.groups=['*.bias: decay=0', ': lr=1']"}, "train.groups has \": lr=1\", without a pattern"},
      {{"train.groups=['a.{2-1}: lr=1']"},
       "train.groups: the pattern \"a.{2-1}\" has \"{2-1}\", whose first end is above the second"},
      {{"train.groups=['a:']"}, "train.groups has \"a:\""},
      {{"train.groups=['a: lr=']"}, "train.groups has \"a: lr=\": \"\" is no number from 0 to 1000000"},
      {{"train.groups=['a: lr=-1']"}, "train.groups has \"a: lr=-1\": \"-1\" is no number from 0 to 1000000"},
      {{"train.groups=['a: lr=nan']"}, "train.groups has \"a: lr=nan\": \"nan\" is no number from 0 to 1000000"},
      {{"train.groups=['a: decay=101']"}, "train.groups has \"a: decay=101\": \"101\" is no number from 0 to 100"},
      {{"train.groups=['a: lr=1, beta=2']"}, "train.groups has \"a: lr=1, beta=2\": it has no \"beta\""},
      {{"train.groups=['a: lr=1, lr=2']"}, "train.groups has \"a: lr=1, lr=2\", with lr twice"},
      {{"shard.min_shard_bytes=1"}, "shard.min_shard_bytes = 1 does not go with shard.layout \"flat\""},
      {{"shard.dims=a=1"}, "shard.dims = [\"a=1\"] does not go with shard.layout \"flat\""},
      {{"shard.layout=per_parameter", "shard.dims=['*.weight']"}, "shard.dims has \"*.weight\""},
      {{"shard.layout=per_parameter", "shard.dims=['*=1', 'b=']"}, "shard.dims has \"b=\""},
      {{"shard.layout=per_parameter", "shard.dims=['=1']"}, "shard.dims has \"=1\""},
      {{"shard.layout=per_parameter", "shard.dims=['a=1x']"}, "shard.dims has \"a=1x\""},
      {{"shard.layout=per_parameter", "shard.dims=['a.{}=1']"}, "shard.dims: the pattern \"a.{}\" has \"{}\""},
      {{"shard.all_reduce_every_micro_batch=true"},
       "shard.all_reduce_every_micro_batch = true does not go with shard.strategy \"zero3\""},
      {{"shard.units=plan"}, "shard.units = \"plan\" without a plan"},
      {{"plan.apply=a", "shard.units=block"}, "shard.units = \"block\" does not go with plan.apply"},
      {{"plan.apply=a", "shard.unit_mib=2"}, "shard.unit_mib = 2 does not go with shard.units \"plan\""},
      {{"plan.apply=a.{}"}, "plan.apply: the pattern \"a.{}\" has \"{}\""},
      {{"plan.apply=a", "plan.hooks=b.{2-1}"},
       "plan.hooks: the pattern \"b.{2-1}\" has \"{2-1}\", whose first end is above the second"},
      {{"plan.apply=a", "plan.reshard=a"}, "plan.reshard has \"a\""},
      {{"plan.apply=a", "plan.reshard=a=0"}, "plan.reshard has \"0\""},
      {{"plan.apply=a", "plan.reshard=a=maybe"}, "plan.reshard has \"maybe\""},
      {{"plan.apply=a", "plan.strategy=a=zero4"}, "plan.strategy has \"zero4\""},
      {{"plan.apply=a", "plan.strategy=a=hsd"}, "plan.strategy has \"hsd\""},
      {{"plan.apply=a", "plan.param=a=f16"}, "plan.param has \"f16\""},
      {{"plan.apply=a", "plan.reduce=a=f64"}, "plan.reduce has \"f64\""},
      {{"plan.apply=a", "plan.output=a=int8"}, "plan.output has \"int8\""},
      {{"plan.apply=a", "plan.gather=a=int4"}, "plan.gather has \"int4\""},
      {{"plan.apply=a", "plan.gather=a=fp8", "train.deterministic=true"},
       "plan.gather = \"fp8\" does not go with train.deterministic"},
      {{"plan.gather=a=fp8"}, "plan.gather = [\"a=fp8\"] has no effect without plan.apply"},
      {{"plan.hooks=a"}, "plan.hooks = [\"a\"] has no effect without plan.apply"},
      {{"plan.reshard=a=true"}, "plan.reshard = [\"a=true\"] has no effect without plan.apply"},
      {{"plan.param=a=f32"}, "plan.param = [\"a=f32\"] has no effect without plan.apply"},
      {{"plan.forward=1"}, "plan.forward = 1 has no effect without plan.apply"},
      {{"plan.backward=2"}, "plan.backward = 2 has no effect without plan.apply"},
      {{"plan.apply=a", "plan.strategy=a=ddp", "shard.group_size=2"},
       "shard.group_size = 2 does not go with shard.strategy \"zero3\""},
      {{"name=a/b"}, "name \"a/b\" cannot name a folder"},
      {{"name=.."}, "name \"..\" cannot name a folder"},
      {{"name="}, "name \"\" cannot name a folder"},
  }));
  const auto problems = problems_of(kSmall, overrides);
  REQUIRE_FALSE(problems.empty());
  CHECK(problems[0].what_happened() == message);
}

TEST_CASE("3-1: a plan is read, and read back from what it was written as") {
  const Overrides overrides = {"plan.apply=['blocks.{*}', 'head']",
                               "plan.hooks=['blocks.{0-1}']",
                               "plan.reshard=['root=2']",
                               "plan.strategy=['head=hsdp']",
                               "plan.param=['head=bf16']",
                               "plan.reduce=['head=bf16']",
                               "plan.output=['head=f32']",
                               "plan.gather=['blocks.{*}=fp8', 'head=none']",
                               "plan.forward=2",
                               "plan.backward=1",
                               "shard.group_size=4"};
  const Config config = parse_config(kSmall, "folder/small.toml", overrides);
  CHECK(config.shard.units == "plan");
  CHECK(parse_config(to_toml(config), "folder/small.toml") == config);
  CHECK(parse_config(to_toml(parse_config(kSmall, "folder/small.toml")), "folder/small.toml").plan == Config::Plan{});
  const Plan plan = plan_of(config);
  CHECK(plan.apply == config.plan.apply);
  CHECK((plan.forward_prefetch == 2 && plan.backward_prefetch == 1));
  REQUIRE(plan.rules.size() == 7);
  CHECK(plan.rules[0].reshard_after_forward == Reshard::over(2));
  REQUIRE(plan.rules[1].scheme);
  CHECK((plan.rules[1].scheme->strategy == Strategy::hsdp && plan.rules[1].scheme->group_size == 4));
  CHECK((plan.rules[2].param == DType::bf16 && plan.rules[3].reduce == DType::bf16));
  CHECK((plan.rules[4].output == DType::f32 && plan.rules[4].pattern == "head"));
  CHECK(
      (plan.rules[5].gather_format == fp8_format() && plan.rules[6].gather_format.value_or(int8_format()) == nullptr));
  CHECK_THROWS_WITH(check_ranks(parse_config(kSmall, "folder/small.toml", overrides), 6),
                    Catch::Contains("plan.strategy, \"head\": "));
}

TEST_CASE("the first pattern that matches a parameter says its dim, and each must match one") {
  const std::vector<std::string> entries = {"blocks.?.mlp.*.weight=-1", "*.weight=1", "blocks.{1-2}.*=0", "*bias=-1"};
  const ChooseDim choose = choose_dim(entries);
  const Shape shape{4, 4};
  CHECK(choose("blocks.3.mlp.up.weight", shape) == -1);
  CHECK(choose("blocks.3.attention.qkv.weight", shape) == 1);
  CHECK(choose("blocks.1.norm1.bias", shape) == 0);
  CHECK(choose("blocks.3.norm1.bias", shape) == -1);
  CHECK(choose("token_embedding", shape) == 0);
  CHECK_FALSE(choose_dim({}));
  CHECK_NOTHROW(check_matches(entries, {"blocks.1.mlp.up.weight", "norm.bias"}));
  CHECK_THROWS_WITH(check_matches(entries, {"blocks.3.mlp.up.weight", "norm.bias"}),
                    Catch::Contains("no parameter matches \"blocks.{1-2}.*\""));
}

TEST_CASE("malformed TOML is one problem with its line") {
  CHECK(only_problem("a = \n").where() == "folder/small.toml:1");
  CHECK(only_problem(kSmall + "steps = 1\n").where() == "folder/small.toml:9");  // a second train.steps
  CHECK(only_problem("x = \"\xff\xfe\"\n").code() == ExitCode::config);
  CHECK(only_problem(std::string(1000, '[')).code() == ExitCode::config);
  CHECK(only_problem("a = " + std::string(100000, '[')).code() == ExitCode::config);
}

TEST_CASE("odd structures are refused, not misread") {
  CHECK(only_problem(kSmall + "[foo]\n").what_happened() == "unknown key foo");
  CHECK(only_problem(kSmall + "[foo.bar.baz]\nx = 1\n").what_happened() == "unknown key foo.bar");
  CHECK(only_problem(kSmall + "[train.lr]\nx = 1\n").what_happened() == "train.lr is a table");
  CHECK(only_problem("\"train.lr\" = 3\n" + kSmall).what_happened() == "unknown key \"train.lr\"");
  CHECK(only_problem("run = 3\n" + kSmall).what_happened() == "run is an integer");
  CHECK(only_problem(kSmall + "[[run]]\ndir = 'x'\n").what_happened() == "run is an array");
  CHECK(problems_of("\xef\xbb\xbf" + kSmall).empty());  // a byte order mark is allowed
}

TEST_CASE("what is not a configuration file is refused") {
  test::TempDir dir;
  const auto what = [](const std::string& path) {
    try {
      load_config(path);
    } catch (const ConfigError& error) {
      CHECK(error.where() == path);
      return error.what_happened();
    }
    return std::string();
  };
  CHECK(what(dir / "none.toml") == "configuration file not found");
  CHECK(what(dir.path()) == "the configuration is not a regular file");
  CHECK(what(dir.write("big.toml", std::string((1 << 20) + 1, '#'))) == "the configuration is larger than 1 MiB");
  CHECK(load_config(dir.write("good.toml", kSmall)).name == "good");
}

TEST_CASE("ranks without a micro-batch are refused, and told what would give them one") {
  const Config config = parse_config(kSmall, "small.toml", {"train.global_batch=16", "train.micro_batch=4"});
  for (const int ranks : {1, 2, 3, 4}) CHECK_NOTHROW(check_ranks(config, ranks));
  CHECK((micro_batches_a_rank(config, 2) == 2 && micro_batches_a_rank(config, 3) == 2));
  const auto message = [](const Config& of, int ranks) {
    try {
      check_ranks(of, ranks);
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::config);
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(message(config, 5) ==
        "train.global_batch 16 in micro-batches of 4 is too small for 5 ranks: use 20 or more, at most 4 ranks, "
        "or a smaller train.micro_batch");
  CHECK(message(config, 17).ends_with("use 68 or more, at most 4 ranks"));
  const Config one = parse_config(kSmall, "small.toml", {"train.global_batch=1", "train.micro_batch=1"});
  CHECK(message(one, 2).ends_with("use 2 or more, at most 1 rank"));
}

TEST_CASE("groups that do not divide the ranks are refused with the sizes that do") {
  const Config config = parse_config(kSmall, "small.toml", {"shard.strategy=nested", "shard.group_size=4"});
  CHECK_NOTHROW(check_ranks(config, 8));
  CHECK_THROWS_WITH(check_ranks(config, 6),
                    "shard.group_size 4 does not divide the job's 6 ranks: use one of 1, 2, 3, 6");
  const Config by_host = parse_config(kSmall, "small.toml", {"shard.strategy=hsdp"});
  CHECK_NOTHROW(check_ranks(by_host, 6));
  CHECK_NOTHROW(check_ranks(by_host, 4, {0, 0, 1, 1}));
  CHECK_THROWS_WITH(
      check_ranks(by_host, 3, {0, 0, 1}),
      Catch::StartsWith("shard.strategy \"hsdp\" without a shard.group_size: the hosts have not equally"));
  const Config between = parse_config(kSmall, "small.toml", {"shard.reshard_after_forward=2"});
  CHECK_NOTHROW(check_ranks(between, 2));
  CHECK_THROWS_WITH(check_ranks(between, 3),
                    "shard.reshard_after_forward 2 does not divide the job's 3 ranks: use one of 1, 3");
}

TEST_CASE("nesting that would take the parser's stack is refused before the parser sees it, wherever it is") {
  constexpr int kMany = 40'000;  // in less than the megabyte that a configuration may have
  std::string dots = "x", quoted = "x", spaced = "x", tables = "1";
  for (int i = 0; i < kMany; ++i) dots += ".a", quoted += ".\"b\"", spaced += " . a";
  for (int i = 0; i < 5000; ++i) tables = "{a=" + tables + "}";
  const std::string arrays = std::string(kMany, '[') + std::string(kMany, ']');
  const std::string deep = dots + " = 1\n";
  for (const std::string& text :
       {"[x]\n" + deep, "[" + dots + "]\n", "[[" + dots + "]]\n", deep, "x = " + arrays + "\n", "x = " + tables + "\n",
        "x = {" + dots + " = 1}\n", quoted + " = 1\n", spaced + " = 1\n", "y = \"\"\" \\\" # \"\"\"\"\n" + deep,
        "y = 'it\\'\n" + deep, "# don't\n" + deep, "y = ''' \" ''''\n" + deep, "y = \"\\\\\"\n" + deep}) {
    INFO(text.substr(0, 60));
    const auto problems = problems_of(kSmall + text);
    REQUIRE(problems.size() == 1);
    CHECK_THAT(problems[0].what(), Catch::Contains("nested more than 16 deep (folder/small.toml:"));
  }
  CHECK_THAT(only_problem(kSmall, {"train.lr=1\n" + deep}).what(), Catch::Contains("nested more than 16 deep (--set"));
  CHECK_THAT(only_problem(kSmall, {"train.lr=" + arrays}).what(), Catch::Contains("nested more than 16 deep (--set"));
}

TEST_CASE("what is long but flat is not taken for deep") {
  std::string list = "train = [";
  for (int i = 0; i < 1000; ++i) list += "\"a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r.s.txt\", ";
  CHECK(problems_of("[model]\npreset = \"tiny\"\n[data]\n" + list +
                    "]  # ....................\n[train]\nsteps = 100\nglobal_batch = 24\n")
            .empty());
}
