#include "model/tokenizer/tokenizer.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "model/tokenizer/regex.h"
#include "tests/message_of.h"
#include "tests/model/temp_dir.h"

namespace tokenizer_test {

using namespace zs;
using Catch::Matchers::Contains;
using nlohmann::json;
using test::TempDir;
using Ids = std::vector<std::int32_t>;

namespace {

const std::string kCases = ZSHARD_SOURCE_ROOT "/tests/data/tokenizers/";

json document(const std::string& name) { return json::parse(test::read_file(kCases + name + "/tokenizer.json")); }

std::unique_ptr<Tokenizer> open_document(const TempDir& dir, const json& document) {
  dir.write("tokenizer.json", document.dump());
  return open_tokenizer(dir.path());
}

std::string refusal(const json& document) {
  TempDir dir;
  return test::message_of([&] { open_document(dir, document); });
}

/// A small model: letters, "ab", "abc".
json letters() {
  return json::parse(
      R"({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
      "post_processor": null, "decoder": null,
      "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
      "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
      "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4, "bc": 5, " ": 6}, "merges": [["a", "b"], ["b", "c"], ["ab", "c"]]}})");
}

}  // namespace

TEST_CASE("ids and texts are those of the tokenizers' own programs") {
  const auto name = GENERATE(as<std::string>(), "gpt2", "llama3", "qwen2", "o200k", "llama2", "mistral", "metaspace",
                             "odd", "sentencepiece");
  CAPTURE(name);
  const auto tokenizer = open_tokenizer(kCases + name);
  const auto encoder = tokenizer->make_encoder();  // one for all, so that its cache is used
  for (const json& row : json::parse(test::read_file(kCases + name + "/expected.json"))) {
    const auto text = row["text"].get<std::string>();
    const auto ids = row["ids"].get<Ids>();
    CAPTURE(text);
    CHECK(tokenizer->encode(text) == ids);
    for (const bool adds : {true, false}) {
      Ids again = {7};
      encoder->encode(text, adds, again);
      again.erase(again.begin());
      CHECK(again == row[adds ? "ids" : "plain"].get<Ids>());
    }
    CHECK(tokenizer->decode(ids) == row["decoded"].get<std::string>());
    CHECK(tokenizer->decode(ids, true) == row["skipped"].get<std::string>());
    for (const std::int32_t id : ids) CHECK(id < tokenizer->vocab_size());
  }
}

TEST_CASE("a byte-level tokenizer gives back the bytes of every text, a character cut in two included") {
  const auto tokenizer = open_tokenizer(kCases + "gpt2");
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    std::string text;
    for (int length = static_cast<int>(random() % 40); length > 0; --length)
      text +=
          std::vector<std::string>{"a", " ", "the", "é", "日", "\U0001F44D", "\n", "9", "'s", "\u180e"}[random() % 10];
    CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
  }
  const Ids ids = tokenizer->encode("日");
  REQUIRE(ids.size() == 3);
  CHECK(tokenizer->decode(std::span(ids).first(2)) == "\xe6\x97");
  CHECK(tokenizer->decode(Ids{-1, 1 << 30}).empty());
}

TEST_CASE("normalization is that of Unicode 9, as others have it") {
  const auto tokenizer = open_tokenizer(kCases + "qwen2");
  const auto normalized = [&](const std::string& text) { return tokenizer->decode(tokenizer->encode(text)); };
  CHECK(normalized("xa\u0301\u0323e\u0301") == "x\u1ea1\u0301\u00e9");
  CHECK(normalized("e\u1df6\u0301 e\u0301\u1df6\u0327\u0301b") == "e\u1df6\u0301 \u00e9\u1df6\u0327\u0301b");
  CHECK(normalized("\U00011935\U00011930") == "\U00011935\U00011930");
}

TEST_CASE("long words merge as short ones do, in any number of pieces") {
  TempDir dir;
  const auto tokenizer = open_document(dir, letters());
  // Ranks decide, not the places: a b | b c | ab c.
  CHECK(tokenizer->encode("abcbcab") == Ids{4, 5, 3});
  std::string text;
  Ids ids;
  for (int i = 0; i < 100000; ++i) {
    text += "abcbcab";
    ids.insert(ids.end(), {4, 5, 3});
  }
  CHECK(tokenizer->encode(text) == ids);
  json whole = letters();  // nothing may be cut before an unknown character that is fused with the next
  whole["model"]["unk_token"] = " ";
  whole["model"]["fuse_unk"] = true;
  CHECK(open_document(dir, whole)->encode("a??b?") == Ids{0, 6, 1, 6});
}

TEST_CASE("a word of a million letters takes no square of its length") {
  // Some seconds at the most; squared it would take hours, and the test's limit end it.
  for (const char* name : {"gpt2", "llama2"}) {
    const auto tokenizer = open_tokenizer(kCases + name);
    const std::string text(1 << 20, 'a');
    CHECK(tokenizer->decode(tokenizer->encode(text, false)) == text);
  }
}

TEST_CASE("an unknown character is dropped, unknown, or its bytes, as the model says") {
  TempDir dir;
  CHECK(open_document(dir, letters())->encode("a?b") == Ids{3});
  json document = letters();
  document["model"]["unk_token"] = "<unk>";
  CHECK_THAT(test::message_of([&] { open_document(dir, document)->encode("a?b"); }), Contains("<unk>"));
  document["model"]["vocab"]["<unk>"] = 7;
  CHECK(open_document(dir, document)->encode("a??b") == Ids{0, 7, 7, 1});
  document["model"]["byte_fallback"] = true;
  document["model"]["vocab"]["<0x3F>"] = 8;
  CHECK(open_document(dir, document)->encode("a?b") == Ids{0, 8, 1});
  // The unknown token comes behind the bytes, as others have it.
  CHECK(open_document(dir, document)->encode("a!?b") == Ids{0, 8, 7, 1});
}

TEST_CASE("text that is not UTF-8 is refused with its place") {
  const auto tokenizer = open_tokenizer(kCases + "qwen2");
  for (const std::string bad : {"\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe6\x97", "\x80"})
    CHECK_THAT(test::message_of([&] { tokenizer->encode("0123456789" + bad); }), Contains("byte 10"));
}

TEST_CASE("what changes the ids and is not supported is refused by name") {
  const auto with = [](const char* pointer, const char* value) {
    json changed = document("qwen2");
    changed[json::json_pointer(pointer)] = json::parse(value);
    return refusal(changed);
  };
  CHECK(refusal(document("qwen2")).empty());
  CHECK_THAT(with("/normalizer", R"({"type": "Lowercase"})"), Contains("normalizer.type = Lowercase"));
  CHECK_THAT(with("/normalizer", R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Nmt"}]})"),
             Contains("normalizer.normalizers[1].type = Nmt"));
  CHECK_THAT(with("/pre_tokenizer", R"({"type": "BertPreTokenizer"})"),
             Contains("pre_tokenizer.type = BertPreTokenizer"));
  CHECK_THAT(with("/pre_tokenizer/pretokenizers/0/behavior", R"("Sideways")"), Contains("behavior = Sideways"));
  CHECK_THAT(with("/pre_tokenizer/pretokenizers/1/new_setting", "true"), Contains("pretokenizers[1].new_setting"));
  CHECK_THAT(with("/pre_tokenizer/pretokenizers/0", R"({"type": "ByteLevel", "add_prefix_space": false})"),
             Contains("ByteLevel before"));
  CHECK_THAT(with("/pre_tokenizer/pretokenizers/0/pattern/Regex", R"("[a-z&&[^x]]+")"), Contains("&& in a class"));
  CHECK_THAT(with("/pre_tokenizer/pretokenizers/0/pattern/Regex", R"("(a")"), Contains("regular expression"));
  CHECK_THAT(with("/model/type", R"("Unigram")"), Contains("model.type = Unigram"));
  CHECK_THAT(with("/model/dropout", "0.1"), Contains("model.dropout = 0.1"));
  CHECK_THAT(with("/truncation", R"({"max_length": 5})"), Contains("truncation"));
  CHECK_THAT(with("/post_processor", R"({"type": "Magic"})"), Contains("post_processor.type = Magic"));
  CHECK_THAT(with("/surprise", "1"), Contains("surprise"));
  CHECK_THAT(with("/added_tokens/0/id", "77"), Contains("<|endoftext|>"));
  json stripped = letters();  // an added token that nothing is left of would be found everywhere
  stripped["normalizer"] = json::parse(R"({"type": "Strip", "strip_left": true, "strip_right": false})");
  stripped["added_tokens"] = json::parse(
      R"([{"id": 6, "content": " ", "single_word": false, "lstrip": false, "rstrip": false, "normalized": true, "special": false}])");
  CHECK_THAT(refusal(stripped), Contains("nothing is left of the added token ' '"));
  stripped["added_tokens"][0]["content"] = "abc ";  // which of the two is found would be chance
  stripped["added_tokens"][0]["id"] = 7;
  stripped["added_tokens"].push_back(stripped["added_tokens"][0]);
  stripped["added_tokens"][1]["content"] = " abc ";
  stripped["added_tokens"][1]["id"] = 8;
  CHECK_THAT(refusal(stripped), Contains("the same when normalized"));
}

TEST_CASE("a decoder that is not supported stops decoding alone") {
  TempDir dir;
  json document = letters();
  document["decoder"] =
      json::parse(R"({"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": true})");
  const auto tokenizer = open_document(dir, document);
  CHECK(tokenizer->encode("abc") == Ids{4});
  CHECK_THAT(test::message_of([&] { tokenizer->decode(Ids{4}); }), Contains("decoder CTC"));
}

TEST_CASE("a broken tokenizer.json is refused with one line") {
  TempDir dir;
  const auto said = [&](const std::string& content) {
    dir.write("tokenizer.json", content);
    return test::message_of([&] { open_tokenizer(dir.path()); });
  };
  CHECK_THAT(said(""), Contains("not valid JSON"));
  CHECK_THAT(said("[]"), Contains("no object"));
  CHECK_THAT(said("{}"), Contains("lacks model"));
  CHECK_THAT(said(std::string(1 << 20, '[')), Contains("tokenizer.json@129") && Contains("nests deeper than 128"));
  CHECK_THAT(said("{\"a\": 1e999}"), Contains("a number that is too large"));
  CHECK_THAT(said("{\"a\": 1, \"a\": 2}"), Contains("\"a\"") && Contains("occurs twice"));
  CHECK_THAT(said("{\"a\": \"\xff\"}"), Contains("not valid JSON"));
  const auto with = [](const char* pointer, const char* value) {
    json changed = letters();
    changed[json::json_pointer(pointer)] = json::parse(value);
    return refusal(changed);
  };
  CHECK_THAT(with("/model/vocab/x", "-1"), Contains("'x'"));
  CHECK_THAT(with("/model/vocab/x", "4294967296"), Contains("'x'"));
  CHECK_THAT(with("/model/vocab/x", "3"), Contains("two tokens of id 3"));
  CHECK_THAT(with("/model/merges/0", R"(["a", "z"])"), Contains("'z'"));
  CHECK_THAT(with("/model/merges/0", R"(["c", "a"])"), Contains("'ca'"));
  CHECK_THAT(with("/model/merges/0", R"("a b")"), Contains("merges[1]"));
  CHECK_THAT(with("/model/merges", R"(["a b c"])"), Contains("merges[0]"));
  CHECK_THAT(with("/model/fuse_unk", "1"), Contains("fuse_unk"));
  CHECK_THAT(with("/model/vocab/x", "16777215"), Contains("an id 16777215 among 8 tokens"));
  const std::string long_text(5000, 'x'), quoted = '"' + long_text + '"';
  CHECK_THAT(with(("/model/vocab/" + long_text).c_str(), "7"), Contains("token 7 has 5000 bytes"));
  CHECK_THAT(with("/model/continuing_subword_prefix", quoted.c_str()), Contains("prefix or suffix of more than 64"));
  CHECK_THAT(with("/model/end_of_word_suffix", quoted.c_str()), Contains("prefix or suffix of more than 64"));
  const std::string added = R"([{"id": 7, "single_word": false, "lstrip": false, "rstrip": false, "normalized": true,
      "special": false, "content": )" +
                            quoted + "}]";
  CHECK_THAT(with("/added_tokens", added.c_str()), Contains("added_tokens[0] has a content of more than 256"));
  json around = letters();
  around["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "a"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"special_tokens", {{"a", {{"ids", Ids(5000)}}}}}};
  CHECK_THAT(refusal(around), Contains("more than 4096 tokens around a text"));
  json many = letters();
  for (int i = 0; i < 100; ++i) many["normalizer"]["normalizers"].push_back({{"type", "NFC"}});
  many["normalizer"]["type"] = "Sequence";
  CHECK_THAT(refusal(many), Contains("more than 64 steps in normalizer"));
  std::filesystem::remove(dir / "tokenizer.json");
  CHECK_THAT(test::message_of([&] { open_tokenizer(dir.path()); }),
             Contains("neither tokenizer.json nor tokenizer.model"));
  dir.write("tokenizer.model", "this is none");
  CHECK_THAT(test::message_of([&] { open_tokenizer(dir.path()); }), Contains("tokenizer.model"));
}

TEST_CASE("the end-of-text token is the one that tokenizer_config.json names, or the usual one") {
  TempDir dir;
  CHECK(open_tokenizer(kCases + "qwen2")->end_of_text() == 0);
  CHECK(open_tokenizer(kCases + "llama2")->end_of_text() == 2);
  CHECK(open_tokenizer(kCases + "sentencepiece")->end_of_text() == 2);
  CHECK(open_document(dir, letters())->end_of_text() == std::nullopt);
  dir.write("tokenizer_config.json", R"({"eos_token": {"content": "abc", "lstrip": false}})");
  CHECK(open_tokenizer(dir.path())->end_of_text() == 4);
  dir.write("tokenizer_config.json", R"({"eos_token": "xyz"})");
  CHECK_THAT(test::message_of([&] { open_tokenizer(dir.path()); }), Contains("eos_token 'xyz'"));
}

TEST_CASE("expressions mean what Oniguruma means by them") {
  Regex::Scratch scratch;
  const auto matches = [&](const std::string& pattern, const std::string& text) {
    std::vector<std::string> found;
    Regex(pattern, "here").find_all(text, scratch, [&](TextRange match) {
      found.push_back(text.substr(match.begin, match.end - match.begin));
    });
    return found;
  };
  using Found = std::vector<std::string>;
  CHECK(matches(R"(\s)", "a\u180e\u0085\u3000b") == Found{"\u0085", "\u3000"});
  CHECK(matches(R"([^\S\n]+)", "a \n\tb") == Found{" ", "\t"});
  CHECK(matches(R"([\S]+)", "ab c") == Found{"ab", "c"});
  CHECK(matches(R"(\w+)", "e\u0301_1\u00b2-") == Found{"e\u0301_1\u00b2"});
  CHECK(matches(R"([\w]+)", "a\u00b2") == Found{"a"});
  CHECK(matches(R"(\h+)", "xBe9z") == Found{"Be9"});
  CHECK(matches("^a|a$", "a\na b\nba") == Found{"a", "a", "a"});
  CHECK(matches("(?i:'s|K)", "'S 'ſ \u212a") == Found{"'S", "'ſ", "\u212a"});
  CHECK(matches(R"(a{,2}b)", "aaab") == Found{"aab"});
  CHECK(matches(R"(\p{Han}+)", "〆漢字、々") == Found{"漢字", "々"});  // the script, not its extensions
  CHECK(matches(R"(\p{^L}+|\x{41}|\u0042)", "A1B") == Found{"A", "1", "B"});
  CHECK(matches("x*", "axb") == Found{"", "x", ""});
  CHECK(matches("a{b", "a{b") == Found{"a{b"});
  CHECK(matches(R"((?<=\d)(?=(\d{3})+\b))", "1234567") == Found{"", ""});
  for (const char* pattern : {R"((a)\1)", "[a[b]]", "(?x)a", R"(\p{Lu)", "a{2}+", "(?<n>a)", R"(\Ga)", "a)", "[",
                              R"(\)", R"(\p{Nonsense})", "(?i:ss)", "(?i)\u00df", R"([\x{110000}])"})
    CHECK_THAT(test::message_of([&] { Regex(pattern, "here"); }), Contains("not supported"));
}

TEST_CASE("an expression that goes astray ends with an error") {
  Regex::Scratch scratch;
  const Regex regex("(?:a|a)*b|(?:(?:a*)*)*c", "here");
  const std::string text(100000, 'a');
  CHECK_THAT(test::message_of([&] { regex.find_all(text, scratch, [](TextRange) {}); }),
             Contains("fails on this text"));
}

TEST_CASE("an expression that takes the square of a text is stopped with its name, and no sensible one is") {
  Regex::Scratch scratch;
  const Regex slow("(.|\\n)*x", "slow.json, pattern"), often("a(?=[^x]*x)|a", "slow.json, pattern");
  const std::string text(1000000, 'a');
  for (const Regex* const regex : {&slow, &often}) {
    scratch.begin_text(text.size() / 1000);  // as if it were a short one, so that the test is
    CHECK_THAT(test::message_of([&] { regex->find_all(text, scratch, [](TextRange) {}); }),
               Contains("takes more than 4 s for a text of 1000 bytes") && Contains("slow.json, pattern"));
  }
  scratch.begin_text(text.size());
  // Found wherever it is, however far, and as far as the text is looked at before a match.
  for (const std::size_t at : {0, 31, 32, 33, 95, 96, 97, 300000, 999999}) {
    std::string marked = text;
    marked[at] = 'b';
    CHECK(Regex("b", "here").find(marked, 0, scratch) == TextRange{at, at + 1});
    if (at > 0) CHECK(Regex("(?<=a)b$|(?<=a)b", "here").find(marked, 0, scratch) == TextRange{at, at + 1});
  }
  CHECK(Regex("\u00e9", "here").find(std::string(31, 'a') + "\u00e8\u00e9", 0, scratch) == TextRange{33, 35});
  CHECK_FALSE(Regex("b", "here").find(text, 0, scratch));
}

TEST_CASE("steps that make a text longer and longer are stopped, and those that a tokenizer needs are not") {
  TempDir dir;
  json document = letters();
  const auto replace = [](const char* from, const std::string& to) {
    return json{{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
  };
  const json grows = replace("a", std::string(10, 'a'));
  document["normalizer"] = {{"type", "Sequence"}, {"normalizers", json::array({grows, grows, grows, grows, grows})}};
  const auto tokenizer = open_document(dir, document);
  CHECK(tokenizer->encode("a").size() == 100000);  // little is allowed to grow
  CHECK_THAT(test::message_of([&] { tokenizer->encode(std::string(100000, 'a')); }),
             Contains("makes more than 64 times 100000 bytes") && Contains("normalizers["));
  document["normalizer"] = {{"type", "Prepend"}, {"prepend", std::string(2 << 20, 'a')}};
  CHECK_THAT(test::message_of([&] { open_document(dir, document)->encode("b"); }), Contains("normalizer, Prepend"));
  document["normalizer"] = nullptr;
  document["decoder"] = {{"type", "Sequence"},
                         {"decoders", json::array({grows, grows, grows, grows, grows, grows, grows})}};
  CHECK_THAT(test::message_of([&] { open_document(dir, document)->decode(Ids{0, 0}); }), Contains("makes more than"));
  document["decoder"] = nullptr;
  document["normalizer"] = {{"type", "Sequence"},
                            {"normalizers", {{{"type", "NFKC"}}, replace(" ", "\u2581"), replace("c", "bc")}}};
  std::string longest;
  for (int i = 0; i < 300000; ++i) longest += "\ufdfa c";  // 18 characters each, in compatibility
  CHECK(!open_document(dir, document)->encode(longest).empty());
}

TEST_CASE("a map of characters that leads out of itself is refused before anything is looked up in it") {
  const std::string good = test::read_file(kCases + "sentencepiece/tokenizer.model");
  const auto number = [](std::uint32_t value) { return std::string(reinterpret_cast<const char*>(&value), 4); };
  const auto field = [](int number, const std::string& content) {
    std::string length;
    std::size_t rest = content.size();
    for (; rest > 127; rest >>= 7) length += static_cast<char>((rest & 127) | 128);
    return static_cast<char>(number << 3 | 2) + length + static_cast<char>(rest) + content;
  };
  const auto units = [&](std::uint32_t unit, int count) {
    std::string all;
    for (int i = 0; i < count; ++i) all += number(unit);
    return all;
  };
  const std::string texts("abc\0", 4);
  struct Case {
    std::string map;
    bool is_good;
  };
  for (const int message : {3, 5}) {  // of the normalizer, and of the one that goes back
    for (const Case& c :
         {Case{number(1024) + units(0, 256) + texts, true}, Case{number(1024) + units(0x7ffffe00, 256) + texts, false},
          Case{number(1024) + units(1U << 18, 256) + texts, false},
          Case{number(1024) + number(0) + units(0xffffffff, 255) + texts, true},  // leaves, never entered
          Case{number(1024) + units(0xffffffff, 256) + texts, false},
          Case{number(1024) + units(1U << 8, 255) + number(4) + texts, false},
          Case{number(1024) + units(0, 256) + "abc", false}, Case{number(1024) + units(0, 256), false},
          Case{number(1020) + units(0, 255) + texts, false}, Case{number(1 << 30) + texts, false}, Case{"ab", false},
          Case{number(0) + texts, false}}) {
      TempDir dir;
      const auto path = dir.write("tokenizer.model", good + field(message, field(2, c.map)));
      const std::string said = test::message_of([&] { open_tokenizer(dir.path())->decode(Ids{5, 6}); });
      INFO(message << ": " << said);
      CHECK(said.empty() == c.is_good);
      if (!c.is_good) CHECK_THAT(said, Contains("map of characters is damaged"));
    }
  }
  const auto refused = [&](const std::string& bytes) {
    TempDir dir;
    dir.write("tokenizer.model", bytes);
    return test::message_of([&] { open_tokenizer(dir.path()); });
  };
  CHECK_THAT(refused(good + field(1, field(1, std::string(5000, 'a')))), Contains("a piece of more than 4096 bytes"));
  CHECK_THAT(refused(good.substr(0, good.size() - 1)), Contains("no SentencePiece model"));
  CHECK_THAT(refused(good + "\x1c"), Contains("no SentencePiece model"));
}

}  // namespace tokenizer_test
