// Keys that do not go with each other, or with the number of ranks.
#include <catch2/catch.hpp>

#include "model/train/config/config_experts.h"
#include "model/train/config/config_schema.h"
#include "tests/train/config_text.h"

namespace config_conflicts_test {

using namespace zs;
using namespace zs::test;

TEST_CASE("keys that contradict each other are refused") {
  const auto [overrides, message] = GENERATE(table<Overrides, std::string>({
      {{"model.heads=3"}, "model.heads 3 does not divide model.width 128"},
      {{"model.family=llama"}, "model.preset \"tiny\" is a gpt2, not a llama"},
      {{"model.preset=llama-tiny", "model.family=gpt2"}, "model.preset \"llama-tiny\" is a llama, not a gpt2"},
      {{"model.kv_heads=2"}, "model.kv_heads does not go with model.family \"gpt2\""},
      {{"model.window=4"}, "model.window does not go with model.family \"gpt2\""},
      {{"model.preset=mixtral-8x7B", "device=cuda"},
       "device = \"cuda\" does not go with a mixture of experts, which has no kernels for GPUs yet"},
      {{"model.experts=4"}, "model.experts does not go with model.family \"gpt2\""},
      {{"model.preset=mixtral-8x7B", "model.norm_topk=false"},
       "model.norm_topk does not go with model.family \"mixtral\""},
      {{"model.preset=mixtral-8x7B", "model.experts_per_token=9"}, "a token cannot have 9 of 8 experts"},
      {{"model.preset=qwen3-30B-A3B", "model.layers=4", "model.dense_layers=[1, 4]"},
       "model.dense_layers names layer 4 of 4"},
      {{"model.preset=smollm3-3B", "model.layers=4"}, "model.no_rope_layers names layer 7 of 4"},
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
      {{"cuda.tune_products=true", "train.deterministic=true"},
       "cuda.tune_products = true does not go with train.deterministic"},
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
      {{"data.train_on=last"}, "data.train_on = \"last\" does not go with data.format = \"stream\""},
      {{"data.format=jsonl", "data.chat_template=a"},
       "data.chat_template = \"a\" does not go with data.format = \"jsonl\""},
      {{"data.format=chat"}, "data.format = \"chat\" without a tokenizer"},
      {{"data.format=chat", "data.special_tokens=always"},
       "data.special_tokens = \"always\" does not go with data.format = \"chat\""},
      {{"preference.beta=2"}, "preference.beta does not go with data.format = \"stream\""},
      {{"data.format=preference", "preference.loss=simpo", "train.micro_batch=3"},
       "train.micro_batch is 3, and a pair is two sequences"},
      {{"data.weights=[1, 2]"}, "data.weights has 2, and data.train 1"},
      {{"data.train=['a', 'b']", "data.weights=[1, 0.00005]"},
       "data.weights has 5e-05, which is less than 1/10000 of all"},
      {{"data.weights=[1]", "data.validation_fraction=0.2"},
       "data.validation_fraction = 0.2 does not go with data.weights"},
      {{"run.validate_every=5", "data.validation_fraction=0"},
       "run.validate_every is set, but there is no validation data"},
      {{"run.evaluate=['a']"}, "run.evaluate = [a] without a validation"},
      {{"run.evaluate=['a']", "run.validate_every=5", "data.validation_fraction=0", "train.patience=2"},
       "train.patience = 2 without validation data"},
      {{"train.schedule=wsd", "train.decay=1", "train.warmup=10"},
       "the decay of 100 steps (train.decay 1 of 100) overlaps the warm-up of 10"},
      {{"train.schedule=wsd", "train.decay=0.29", "train.warmup=72"},
       "the decay of 29 steps (train.decay 0.29 of 100) overlaps the warm-up of 72"},
      {{"comm.transport=mpi", "comm.ranks=2"}, "comm.ranks 2 does not go with comm.transport = \"mpi\""},
      {{"model.preset="}, "model.layers is missing"},
      {{"train.steps=1000000000", "train.global_batch=1048576", "train.sequence=1048576", "model.context=1048576"},
       "steps x batch x sequence is 1.1e+21 tokens"},
      {{"shard.units=model", "shard.unit_mib=2.5"}, "shard.unit_mib = 2.5 does not go with shard.units \"model\""},
      {{"lora.rank=2", "lora.targets=c_attn", "plan.apply=blocks.*"},
       "lora.rank does not go with plan.apply: adapters are units of their own"},
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
      {{"train.optimizer=schedule_free_adamw", "train.average=0.9"},
       "train.average = 0.9 does not go with train.optimizer \"schedule_free_adamw\""},
      {{"train.optimizer=schedule_free_adamw", "train.beta1=0"},
       "train.beta1 = 0 does not go with train.optimizer \"schedule_free_adamw\""},
      {{"train.optimizer=schedule_free_adamw", "offload.moments=host"},
       "train.optimizer = \"schedule_free_adamw\" does not go with what the host keeps (offload)"},
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

TEST_CASE("3-2: experts over ranks are refused where they or the ranks cannot be dealt, or keys have no effect") {
  const auto problem = [](std::vector<std::string> overrides, bool is_mixture = true) {
    if (is_mixture) overrides.insert(overrides.begin(), {"model.preset=mixtral-8x7B", "model.experts=6"});
    const auto problems = problems_of(kSmall, overrides);
    return problems.empty() ? std::string() : std::string(problems[0].what_happened());
  };
  CHECK(problem({"experts.parallel=1", "experts.group_size=0"}, false).empty());
  CHECK(problem({"experts.parallel=2"}, false) == "experts.parallel = 2 without experts: the model is no mixture");
  CHECK(problem({"experts.apply=a"}, false) == "experts.apply = [\"a\"] without experts: the model is no mixture");
  CHECK(problem({"experts.parallel=3", "experts.group_size=2", "experts.dispatcher=all_gather"}).empty());
  CHECK(problem({"experts.parallel=4"}) == "experts.parallel = 4 does not divide model.experts = 6");
  CHECK(problem({"experts.dispatcher=mc2"}).starts_with("experts.dispatcher is \"mc2\""));
  CHECK(problem({"experts.dispatcher=all_gather"}) ==
        "experts.dispatcher = \"all_gather\" has no effect without experts.parallel above 1");
  CHECK(problem({"experts.apply=blocks.*"}).starts_with("experts.apply has no effect without experts.parallel"));
  CHECK(problem({"experts.parallel=2", "experts.apply={x}"}).starts_with("experts.apply: "));
  CHECK(problem({"experts.parallel=2", "train.deterministic=true"}) ==
        "experts.parallel = 2 does not go with train.deterministic");
  for (const char* optimizer : {"muon", "adamw8bit"})
    CHECK(problem({"experts.parallel=2", fmt::format("train.optimizer={}", optimizer)}) ==
          fmt::format("experts.parallel = 2 does not go with train.optimizer \"{}\", which takes parameters as a whole",
                      optimizer));
  CHECK(problem({"experts.parallel=2", "plan.apply=blocks.*"}) == "shard.units = \"plan\" does not go with [experts]");
  const auto with = [](const std::vector<std::string>& overrides) {
    std::vector<std::string> all{"model.preset=mixtral-8x7B", "model.experts=6"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return parse_config(kSmall, "small.toml", all);
  };
  CHECK_NOTHROW(check_ranks(with({"experts.parallel=2", "experts.group_size=2"}), 8));
  CHECK_THROWS_WITH(check_ranks(with({"experts.parallel=2"}), 3),
                    "experts.parallel 2 does not divide the job's 3 ranks: use one of 1, 3");
  CHECK_THROWS_WITH(check_ranks(with({"experts.parallel=2", "experts.group_size=3"}), 8),
                    "experts.parallel x experts.group_size = 2 x 3 does not divide the job's 8 ranks: use an "
                    "experts.group_size of 1, 2, 4");
}

TEST_CASE("3-3, 3-15: experts over ranks lie on axes whose sizes make up the ranks") {
  const auto scheme = [](const std::vector<std::string>& overrides, int ranks) {
    std::vector<std::string> all{"model.preset=mixtral-8x7B", "model.experts=6"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    const Config config = parse_config(kSmall, "small.toml", all);
    const UnitPolicy policy = expert_policy({}, config, ranks);
    const RankGrid grid(expert_grid(config, ranks), 0, ranks);
    return ShardScheme(policy.scheme.value_or(SchemeOptions{}), grid.sub_grid(policy.partition.axes())).describe();
  };
  CHECK(scheme({"experts.parallel=2"}, 4) ==
        "zero3: parameters over 2 ranks, between forward and backward over 2 ranks, gradients between micro-batches "
        "over 2 ranks, optimizer state over 2 ranks, beside ep");
  CHECK(scheme({"experts.parallel=2", "experts.group_size=2"}, 12).ends_with("over 2 ranks, 3 replicas, beside ep"));
  CHECK(scheme({"experts.parallel=2", "shard.strategy=ddp"}, 4).starts_with("ddp"));
  CHECK(scheme({"experts.parallel=2", "shard.strategy=hsdp", "shard.group_size=4"}, 8)
            .starts_with("zero3: parameters over 4"));
  CHECK(scheme({"experts.parallel=2", "shard.strategy=ddp", "experts.group_size=2"}, 8)
            .starts_with("hsdp: parameters over 2 ranks, between forward and backward over 2"));
  CHECK(scheme({"experts.parallel=3", "shard.reshard_after_forward=2"}, 6)
            .starts_with("zero3: parameters over 2 ranks, between forward and backward over 2"));
  CHECK(scheme({"experts.parallel=2", "shard.reshard_after_forward=2"}, 6)
            .starts_with("zero3: parameters over 3 ranks, between forward and backward over 3"));
  CHECK(scheme({"experts.group_size=2"}, 4).ends_with("over 2 ranks, 2 replicas"));
  const Config halved =
      parse_config(kSmall, "small.toml", {"model.preset=mixtral-8x7B", "experts.parallel=2", "experts.divide=8"});
  const Division division = expert_policy({}, halved, 4).division.value_or(Division{});
  CHECK((division.factors(4).before == 1 && division.factors(4).after == 2));  // the losses are divided by the ranks
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

}  // namespace config_conflicts_test
