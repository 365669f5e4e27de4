// The keys of --set that a command reads.
#include "model/train/config/key_use.h"

#include <catch2/catch.hpp>

#include "model/train/config/config_schema.h"
#include "tests/message_of.h"
#include "tests/train/config_text.h"

namespace zs::test::key_use_test {

using Catch::Contains;

TEST_CASE("a key of --set that a command does not read is named, once") {
  const auto unread = [](std::string_view command, const Overrides& overrides) {
    return unread_keys(key_use(command), overrides);
  };
  CHECK(unread("evaluate", {"train.micro_batch=2", "lora.path=a", "comm.ranks=2"}).empty());
  CHECK(unread("sample", {" run.dir = x", "train.seed=1", "run.dir=y", "train.lr=1"}) ==
        "--set of run.dir, train.lr has no effect on sample");
  CHECK(unread("export of a model's folder", {"lora.path=a", "lora.rank=2"}).empty());
  CHECK(unread("export of a model's folder", {"model.vocab=2"}) ==
        "--set of model.vocab has no effect on export of a model's folder");
  CHECK(unread("export of a configuration", {"run.dir=a", "model.path=b", "name=c"}).empty());
  CHECK(unread("export of a configuration", {"train.steps=2"}) ==
        "--set of train.steps has no effect on export of a configuration");
  CHECK(unread("evaluate", {"train.epoks=2"}).empty());  // who reads the configuration refuses it
}

TEST_CASE("an export of what has its configuration in it takes no --set, and says of an unknown key that it is none") {
  const auto unread = [](const Overrides& overrides) {
    return unread_keys(key_use("export of a run or a checkpoint"), overrides);
  };
  CHECK(unread({}).empty());
  CHECK_THAT(
      message_of([&] {
        unread({"data.field=x", "data.format=jsonl"});
      }),
      Contains("export of a run or a checkpoint reads no configuration, and --set gives it data.field, data.format"));
  CHECK_THAT(message_of([&] { unread({"data.feild=x"}); }),
             Contains("unknown key data.feild") && Contains("did you mean data.field?"));
  CHECK_THAT(message_of([&] { unread({"train.steps=none"}); }), Contains("train.steps is none"));
}

TEST_CASE("for the model alone no key of data and steps is required, and each is still checked") {
  const std::string model = "[model]\npreset = \"tiny\"\n";
  CHECK(problems_of(model).size() == 3);
  const Config config = parse_config(model, "folder/small.toml", {}, ConfigFor::model);
  CHECK(config.model.layers == 4);
  CHECK_THROWS_WITH(parse_config(model, "folder/small.toml", {"train.steps=-1"}, ConfigFor::model),
                    Contains("train.steps is -1"));
}

TEST_CASE("names of the tables of keys are keys, or tables that there are") {
  for (const char* command : {"evaluate", "sample", "export of a configuration", "export of a model's folder"}) {
    for (const auto& names : {key_use(command).read, key_use(command).unread}) {
      for (const std::string_view name : names) {
        CAPTURE(command, std::string(name));
        const auto keys = config_keys();
        CHECK(std::any_of(keys.begin(), keys.end(), [&](const ConfigKey& key) {
          return name.empty() || key.name == name || (name.ends_with('.') && key.name.starts_with(name));
        }));
      }
    }
  }
}

}  // namespace zs::test::key_use_test
