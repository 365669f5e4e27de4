// The files beside tokenizer.json and tokenizer.model, with the ids that transformers makes of them.
#include "model/tokenizer/tokenizer_config.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "model/tokenizer/tokenizer.h"
#include "tests/message_of.h"
#include "tests/model/temp_dir.h"

namespace tokenizer_config_test {

using namespace zs;
using Catch::Matchers::Contains;
using nlohmann::json;
using test::TempDir;
using Ids = std::vector<std::int32_t>;

namespace {

const std::string kCases = ZSHARD_SOURCE_ROOT "/tests/data/tokenizers/";

/// Letters, "ab" and a space, with added tokens <s> and </s>, which are special, and <x>, which is not.
json letters() {
  json document = json::parse(R"({"version": "1.0", "truncation": null, "padding": null, "normalizer": null,
      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
      "post_processor": null, "decoder": null, "added_tokens": [],
      "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                "vocab": {"a": 0, "b": 1, "ab": 2, "\u0120": 3, "\u0120a": 4, "<": 5, "/": 6, "s": 7, ">": 8, "x": 9},
                "merges": [["a", "b"], ["\u0120", "a"]]}})");
  int id = 10;
  for (const char* const token : {"<s>", "</s>", "<x>"})
    document["added_tokens"].push_back({{"id", id++},
                                        {"content", token},
                                        {"single_word", false},
                                        {"lstrip", false},
                                        {"rstrip", false},
                                        {"normalized", false},
                                        {"special", token[1] != 'x'}});
  return document;
}

std::unique_ptr<Tokenizer> with_files(const TempDir& dir, const json& config, const json& map = nullptr,
                                      const json& added = nullptr) {
  for (const auto& [name, content] :
       {std::pair("tokenizer_config.json", config), {"special_tokens_map.json", map}, {"added_tokens.json", added}}) {
    std::filesystem::remove(dir / name);
    if (!content.is_null()) dir.write(name, content.dump());
  }
  return open_tokenizer(dir.path());
}

}  // namespace

TEST_CASE("special_tokens_map.json goes before tokenizer_config.json, unless that says the tokens itself") {
  TempDir dir;
  dir.write("tokenizer.json", letters().dump());
  const json map = {{"eos_token", {{"content", "</s>"}}}, {"bos_token", "<s>"}};
  CHECK(with_files(dir, nullptr, map)->end_of_text() == 11);
  CHECK(with_files(dir, nullptr, map)->begin_of_text() == 10);
  CHECK(with_files(dir, {{"eos_token", "<x>"}}, map)->end_of_text() == 11);
  const json decoder = {{"12", {{"content", "<x>"}}}};
  const json newer = {{"eos_token", "<x>"}, {"added_tokens_decoder", decoder}};
  CHECK(with_files(dir, newer, map)->end_of_text() == 12);
  CHECK(with_files(dir, {{"added_tokens_decoder", decoder}}, map)->end_of_text() == 11);
  CHECK_THAT(test::message_of([&] { with_files(dir, nullptr, {{"eos_token", "<y>"}}); }), Contains("eos_token '<y>'"));
}

TEST_CASE("tokenizer_config.json changes the space before a text, special tokens in a text, and added tokens") {
  TempDir dir;
  dir.write("tokenizer.json", letters().dump());
  CHECK(with_files(dir, json::object())->encode("ab</s>a") == Ids{2, 11, 0});
  CHECK(with_files(dir, {{"add_prefix_space", true}})->encode("ab</s>a") == Ids{3, 2, 11, 4});
  CHECK(with_files(dir, {{"split_special_tokens", true}})->encode("a</s><x>") == Ids{0, 5, 6, 7, 8, 12});
  const json decoder = {{"11", {{"content", "</s>"}, {"lstrip", true}, {"special", true}}},
                        {"13", {{"content", "<y>"}}}};
  const auto more = with_files(dir, {{"added_tokens_decoder", decoder}});
  CHECK(more->encode("a </s><y>") == Ids{0, 11, 13});
  CHECK(more->vocab_size() == 14);
  CHECK(with_files(dir, nullptr, nullptr, {{"<z>", 13}})->encode("<z>") == Ids{13});
  CHECK_THAT(test::message_of([&] { with_files(dir, nullptr, nullptr, {{"<z>", 14}}); }), Contains("where 13 is due"));
  CHECK_THAT(test::message_of([&] {
               with_files(dir, {{"added_tokens_decoder", {{"x", json::object()}}}});
             }),
             Contains("a token of id 'x'"));
}

TEST_CASE("a metaspace that goes before the first word alone goes before none behind white space that is stripped") {
  TempDir dir;
  json document = letters();
  document["model"]["vocab"] = {{"a", 0}, {"b", 1}, {"\u2581", 2}, {"\u2581a", 3}};
  document["model"]["merges"] = json::array({"\u2581 a"});
  document["added_tokens"] = json::array();
  document["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "first"}};
  document["normalizer"] = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
  dir.write("tokenizer.json", document.dump());
  CHECK(open_tokenizer(dir.path())->encode("a") == Ids{3});
  CHECK(open_tokenizer(dir.path())->encode("\na") == Ids{0});
  document["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Regex", "^b"}}}, {"content", ""}};
  dir.write("tokenizer.json", document.dump());
  CHECK(open_tokenizer(dir.path())->encode("ba") == Ids{0});
  CHECK(with_files(dir, {{"add_prefix_space", false}})->encode("a") == Ids{0});
}

TEST_CASE("tokens beside tokenizer.model are found in a text, and its own where they have a part to play") {
  TempDir dir;
  std::filesystem::copy_file(kCases + "sentencepiece/tokenizer.model", dir / "tokenizer.model");
  const auto plain = open_tokenizer(dir.path());
  const std::int32_t size = plain->vocab_size(), letter = *plain->token_to_id("e");
  const Ids word = plain->encode("e");
  CHECK(word != Ids{letter});
  const auto joined = [](Ids ids, const Ids& more) {
    ids.insert(ids.end(), more.begin(), more.end());
    return ids;
  };
  const auto added = with_files(dir, nullptr, nullptr, {{"<|im_start|>", size}});
  CHECK(added->vocab_size() == size + 1);
  CHECK(added->token_to_id("<|im_start|>") == size);
  CHECK(added->encode("e<|im_start|>e") == joined(joined(word, {size}), word));
  const Ids ids = added->encode("e<|im_start|>e");
  CHECK(added->decode(ids) == "e<|im_start|> e");
  const json decoder = {{std::to_string(size), {{"content", "<|im_start|>"}, {"special", true}}}};
  const json config = {{"added_tokens_decoder", decoder}, {"eos_token", "<|im_start|>"}, {"legacy", false}};
  const auto newer = with_files(dir, config);
  CHECK(newer->end_of_text() == size);
  CHECK(newer->encode("e<|im_start|>e e") == joined(joined(word, {size, letter}), word));
  CHECK(newer->decode(newer->encode("e<|im_start|>e"), true) == "ee");
  CHECK(with_files(dir, {{"eos_token", "</s>"}})->encode("e</s>") == joined(word, {2}));
  CHECK(with_files(dir, {{"add_prefix_space", false}})->encode("e e") == joined({letter}, word));
}

}  // namespace tokenizer_config_test
