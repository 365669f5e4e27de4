// What is wrong with a configuration, and how it is told.
#include <catch2/catch.hpp>

#include "model/train/config/config_plan.h"
#include "model/train/config/config_schema.h"
#include "model/train/config/pattern_entries.h"
#include "runtime/base/name_pattern.h"
#include "tests/model/temp_dir.h"
#include "tests/train/config_text.h"

namespace config_problems_test {

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

TEST_CASE("a key's name in other programs is answered with ours") {
  const auto advice = [](const std::string& key) { return only_problem(kSmall, {key + "=3"}).what_to_do(); };
  CHECK(advice("train.learning_rate") == "here that is train.lr");
  CHECK(advice("learning_rate") == "here that is train.lr");
  CHECK(advice("train.num_train_epochs") == "here that is train.epochs");
  CHECK(advice("epochs") == "did you mean train.epochs?");
  CHECK(advice("lora.r") == "here that is lora.rank");
  CHECK_THAT(advice("train.gradient_accumulation_steps"), Catch::Contains("train.global_batch"));
  for (const char* const leaf :
       {"num_epochs", "max_steps", "batch_size", "warmup_ratio", "max_grad_norm", "max_seq_length", "output_dir",
        "save_steps", "eval_steps", "target_modules", "hidden_size"}) {
    const std::string ours(*foreign_config_key(leaf));
    CAPTURE(leaf, ours);
    CHECK(find_config_key(ours.substr(0, ours.find_first_of(", ="))) != nullptr);
  }
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

}  // namespace config_problems_test
