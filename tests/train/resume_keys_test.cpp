// Which keys may change when a run goes on.
#include <catch2/catch.hpp>
#include <set>

#include "model/train/run_dir/resume.h"

namespace resume_keys_test {

using namespace zs;

namespace {

const DataFacts kData{.train_tokens = 1000, .train_digest = "0a", .validation_digest = "none", .train_files = "a.txt"};

Config example() {
  Config config;
  config.train.steps = 10;
  return config;
}

}  // namespace

TEST_CASE("how many checkpoints stay is as it was saved, unless it was given, and then it is named") {
  Config config = example();
  auto saved = run_attributes(config, kData);
  saved["config.checkpoint.keep"] = "0";
  keep_as_saved(config, saved);
  CHECK(config.checkpoint.keep == 0);
  config.checkpoint.keep = 5;
  config.given.keys["checkpoint.keep"] = "file:1";
  keep_as_saved(config, saved);
  CHECK(config.checkpoint.keep == 5);
  CHECK(compare_runs(saved, run_attributes(config, kData), "c") == std::vector<std::string>{"checkpoint.keep 0 -> 5"});
  for (const char* text : {"x", "-1", "99999999999999999999"}) {
    Config other = example();
    saved["config.checkpoint.keep"] = text;
    keep_as_saved(other, saved);
    CHECK(other.checkpoint.keep == 3);
  }
}

TEST_CASE("C8: each key may change, may change and is named, or may not") {
  const auto saved = run_attributes(example(), kData);
  CHECK(compare_runs(saved, saved, "c").empty());
  const auto with = [&](const std::string& key, const std::string& value) {
    auto now = saved;
    REQUIRE(now.contains(key));
    now[key] = value;
    return now;
  };
  CHECK(compare_runs(saved, with("config.train.lr", "0.5"), "c") == std::vector<std::string>{"train.lr 0.0006 -> 0.5"});
  CHECK(compare_runs(saved, with("config.model.dropout", "0.1"), "c") ==
        std::vector<std::string>{"model.dropout 0.0 -> 0.1"});
  CHECK(compare_runs(saved, with("config.model.pad_token_id", "3"), "c") ==
        std::vector<std::string>{"model.pad_token_id -1 -> 3"});
  CHECK(compare_runs(saved, with("config.train.steps", "20"), "c") == std::vector<std::string>{"train.steps 10 -> 20"});
  CHECK(compare_runs(saved, with("data.train_digest", "0b"), "c") ==
        std::vector<std::string>{"data.train_digest 0a -> 0b (it is other data)"});
  CHECK(compare_runs(saved, with("data.validation_digest", "0b"), "c").size() == 1);
  CHECK(compare_runs(saved, with("data.train_files", "b.txt"), "c") ==
        std::vector<std::string>{"data.train_files a.txt -> b.txt"});
  for (const char* key : {"config.data.token_bytes", "config.comm.ranks", "config.shard.units", "config.run.dir",
                          "config.checkpoint.every", "config.data.train", "config.name"})
    CHECK(compare_runs(saved, with(key, "other"), "c").empty());
  std::set<std::string> refused;
  for (const auto& [key, value] : saved) {
    try {
      compare_runs(saved, with(key, "other"), "c");
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::config);
      CHECK_THAT(error.what_happened(), Catch::Contains(value + " -> other"));
      refused.insert(key);
    }
  }
  CHECK(refused == std::set<std::string>{"config.data.kind",
                                         "config.model.dense_layers",
                                         "config.model.expert_hidden",
                                         "config.model.experts",
                                         "config.model.experts_per_token",
                                         "config.model.global_layers",
                                         "config.model.local_rotary_base",
                                         "config.model.no_rope_layers",
                                         "config.model.norm_topk",
                                         "config.model.shared_expert_hidden",
                                         "config.lora.alpha",
                                         "config.lora.alpha_pattern",
                                         "config.lora.dora",
                                         "config.lora.modules_to_save",
                                         "config.lora.rank",
                                         "config.lora.rank_pattern",
                                         "config.lora.rslora",
                                         "config.lora.targets",
                                         "config.model.activation",
                                         "config.model.context",
                                         "config.model.family",
                                         "config.model.head_dim",
                                         "config.model.heads",
                                         "config.model.hidden",
                                         "config.model.kv_heads",
                                         "config.model.layers",
                                         "config.model.norm_eps",
                                         "config.model.rotary_base",
                                         "config.model.rotary_context",
                                         "config.model.rotary_factor",
                                         "config.model.rotary_high",
                                         "config.model.rotary_low",
                                         "config.model.rotary_scaling",
                                         "config.model.rotary_truncate",
                                         "config.model.tied_head",
                                         "config.model.window",
                                         "config.preference.loss",
                                         "config.model.vocab",
                                         "config.model.width",
                                         "config.train.average",
                                         "config.train.beta1",
                                         "config.train.beta2",
                                         "config.train.eps",
                                         "config.train.frozen",
                                         "config.train.global_batch",
                                         "config.train.momentum",
                                         "config.train.muon",
                                         "config.train.nesterov",
                                         "config.train.optimizer",
                                         "config.train.seed",
                                         "config.train.sequence",
                                         "data.train_tokens",
                                         "config.data.format",
                                         "config.data.weights"});
}

TEST_CASE("a key that the program which saved did not know counts as unchanged") {
  auto saved = run_attributes(example(), kData);
  const auto now = saved;
  saved.erase("config.train.seed");
  saved["config.train.gone"] = "1";
  CHECK(compare_runs(saved, now, "c").empty());
  saved.erase("config.model.window");
  CHECK(compare_runs(saved, now, "c").empty());
  auto windowed = now;
  windowed["config.model.window"] = "4";
  CHECK_THROWS_WITH(compare_runs(saved, windowed, "c"), Catch::Contains("model.window 0 -> 4"));
}

}  // namespace resume_keys_test
