// Documents through a tokenizer: the special tokens around them, tokens that the model has not, and how they are shown.
#include <catch2/catch.hpp>

#include "model/data/dataset.h"
#include "runtime/tensor/reduction.h"
#include "tests/model/temp_dir.h"

namespace zs::test::framed_documents_test {
namespace {

constexpr std::int64_t kSequence = 8;

DatasetOptions options_of(DocumentFormat format, std::vector<std::string> files) {
  DatasetOptions options;
  options.train = std::move(files);
  options.validation_fraction = 0;
  options.folders = {""};
  options.sequence = kSequence;
  options.vocab = 256;
  options.documents.format = format;
  return options;
}

Error refusal(const DatasetOptions& options) {
  try {
    open_dataset(options);
  } catch (const Error& error) {
    return error;
  }
  FAIL("no error");
  throw 0;
}

}  // namespace

TEST_CASE("where the tokenizer ends each text itself, a document has one end, and it is not behind its prompt") {
  TempDir dir;
  dir.write("tokenizer.json",
            R"({"version": "1.0", "truncation": null, "padding": null, "normalizer": null, "pre_tokenizer": null,
                "decoder": null, "added_tokens": [{"id": 3, "content": "<e>", "single_word": false, "lstrip": false,
                                                   "rstrip": false, "normalized": false, "special": true}],
                "post_processor": {"type": "TemplateProcessing", "pair": [],
                                   "single": [{"Sequence": {"id": "A", "type_id": 0}},
                                              {"SpecialToken": {"id": "<e>", "type_id": 0}}],
                                   "special_tokens": {"<e>": {"id": "<e>", "ids": [3], "tokens": ["<e>"]}}},
                "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                          "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                          "ignore_merges": false, "vocab": {"a": 0, "b": 1, "c": 2}, "merges": []}})");
  dir.write("tokenizer_config.json", R"({"eos_token": "<e>"})");
  DatasetOptions options =
      options_of(DocumentFormat::jsonl,
                 {dir.write("a.jsonl", "{\"q\": \"ab\", \"text\": \"c\"}\n{\"q\": \"\", \"text\": \"b\"}\n")});
  options.tokenizer = std::shared_ptr<const Tokenizer>(open_tokenizer(dir.path()));
  options.vocab = 4;
  options.documents.prompt_field = "q";
  auto [inputs, targets, lengths] = open_dataset(options).train.read(0, 1);
  inputs.resize(6), targets.resize(6);
  CHECK(inputs == std::vector<std::int32_t>{0, 1, 2, 3, 1, 3});
  CHECK(targets == std::vector<std::int32_t>{kIgnoredTarget, 2, 3, kIgnoredTarget, 3, kIgnoredTarget});
}

namespace {

/// Letters a to c, then <s>, <sep> and <e>, of which <s> and <sep> stand around a text, and <e> ends it.
std::shared_ptr<const Tokenizer> framing_tokenizer(const TempDir& dir) {
  std::string added, special;
  int id = 3;
  for (const char* const token : {"<s>", "<sep>", "<e>"}) {
    added += fmt::format(R"({}{{"id": {}, "content": "{}", "single_word": false, "lstrip": false, "rstrip": false,
                                "normalized": false, "special": true}})",
                         added.empty() ? "" : ", ", id, token);
    special += fmt::format(R"({}"{}": {{"id": "{}", "ids": [{}], "tokens": ["{}"]}})", special.empty() ? "" : ", ",
                           token, token, id++, token);
  }
  dir.write("tokenizer.json",
            R"({"version": "1.0", "truncation": null, "padding": null, "normalizer": null, "pre_tokenizer": null,
                "decoder": null, "added_tokens": [)" +
                added + R"(], "post_processor": {"type": "TemplateProcessing", "pair": [], "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "<sep>", "type_id": 0}}], "special_tokens": {)" +
                special + R"(}}, "model": {"type": "BPE", "dropout": null, "unk_token": null,
                "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                "ignore_merges": false, "vocab": {"a": 0, "b": 1, "c": 2}, "merges": []}})");
  dir.write("tokenizer_config.json", R"({"eos_token": "<e>"})");
  return open_tokenizer(dir.path());
}

/// The ids of the only document.
std::vector<std::int32_t> ids_of(const DatasetOptions& options) {
  const SampleSource source = open_dataset(options).train;
  REQUIRE(source.windows() == 1);
  SampleBatch batch = source.read(0, 1);
  batch.inputs.resize(static_cast<std::size_t>(batch.lengths.front()));
  return batch.inputs;
}

}  // namespace

TEST_CASE("what stands around a text stands around prompt and text, and not twice where the text has it") {
  TempDir dir;
  using Ids = std::vector<std::int32_t>;
  DatasetOptions options = options_of(DocumentFormat::jsonl, {});
  options.tokenizer = framing_tokenizer(dir);
  options.vocab = 6;
  options.documents.prompt_field = "q";
  const auto ids = [&](const std::string& prompt, const std::string& text, SpecialTokens special) {
    options.train = {dir.write("a.jsonl", fmt::format(R"({{"q": "{}", "text": "{}"}})", prompt, text))};
    options.special = special;
    return ids_of(options);
  };
  const auto automatic = SpecialTokens::automatic, always = SpecialTokens::always, none = SpecialTokens::none;
  CHECK(ids("a", "b", automatic) == Ids{3, 0, 1, 4, 5});
  CHECK(ids("<s>a", "b<e> ", automatic) == Ids{3, 0, 1, 5});
  CHECK(ids("", "<s>b<sep>", automatic) == Ids{3, 1, 4, 5});
  CHECK(ids("", "<s>b<e>", none) == Ids{3, 1, 5});
  CHECK(ids("", "b", none) == Ids{1});
  CHECK(ids("", "<s>b", always) == Ids{3, 3, 1, 4, 5});
  dir.write("f.txt", "<s>ab<sep>");
  dir.write("g.txt", "c");
  std::vector<std::int32_t> stream;
  encode_documents(*options.tokenizer, {dir / "f.txt", dir / "g.txt"}, 1, automatic,
                   [&](const Ids& some) { stream.insert(stream.end(), some.begin(), some.end()); });
  CHECK(stream == Ids{3, 0, 1, 4, 5, 3, 2, 4});
}

TEST_CASE("a text that ends with the end token and white space gets no second one") {
  TempDir dir;
  DatasetOptions options =
      options_of(DocumentFormat::jsonl, {dir.write("a.jsonl", R"({"text": "In<|endoftext|> \n"})")});
  options.tokenizer = open_tokenizer(fmt::format("{}/tests/data/tokenizers/gpt2", ZSHARD_SOURCE_ROOT));
  options.vocab = options.tokenizer->vocab_size();
  options.sequence = 16;
  CHECK(ids_of(options) == options.tokenizer->encode("In<|endoftext|> \n"));
  options.special = SpecialTokens::always;
  CHECK(ids_of(options).back() == *options.tokenizer->end_of_text());
}

TEST_CASE("a tokenizer may have more ids than the model, as long as no text has one") {
  TempDir dir;
  DatasetOptions options = options_of(DocumentFormat::jsonl, {dir.write("a.jsonl", R"({"text": "abc"})")});
  options.tokenizer = framing_tokenizer(dir);
  options.special = SpecialTokens::none;
  options.vocab = 4;
  CHECK(refusal(options).code() == ExitCode::config);  // a model of its own has what it needs
  options.has_fixed_vocab = true;
  CHECK(ids_of(options) == std::vector<std::int32_t>{0, 1, 2});
  options.train = {dir.write("b.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b<e>\"}\n")};
  CHECK(refusal(options).what_happened() == "the document has token 5 ('<e>'), and the model has 4 embeddings");
  CHECK(refusal(options).where() == dir / "b.jsonl:2");
  options.train = {dir.write("b.txt", "b<e>bcabcabc")};
  options.documents = {};
  CHECK_THAT(refusal(options).what_happened(), Catch::Contains("token 5 ('<e>')"));
}

TEST_CASE("a document is shown as it is trained on") {
  TempDir dir;
  DatasetOptions options = options_of(DocumentFormat::jsonl, {dir.write("a.jsonl",
                                                                        "{\"q\": \"\", \"text\": \"c\"}\n"
                                                                        "{\"q\": \"ab\", \"text\": \"c\"}\n")});
  options.tokenizer = framing_tokenizer(dir);
  options.vocab = 6;
  options.documents.prompt_field = "q";
  const std::string shown = show_document(options, 2);
  CHECK_THAT(shown, Catch::StartsWith("document 2 of 2, " + (dir / "a.jsonl:2") + ": 6 tokens, 3 of them targets\n"));
  CHECK_THAT(shown, Catch::Contains("     2       1  -       \"b\"\n     3       2  target  \"c\"\n"));
  CHECK_THROWS_WITH(show_document(options, 3), Catch::Contains("there is no document 3"));
  options.documents = {};
  options.tokenizer = nullptr;
  options.vocab = 256;
  options.train = {dir.write("a.txt", "0123456789abcdefgh")};
  CHECK_THAT(show_document(options, 2), Catch::StartsWith("sequence 2 of 2: 9 tokens, 8 of them targets\n"));
}

TEST_CASE("documents through a tokenizer end with its end-of-text token, and a prompt is encoded by itself") {
  TempDir dir;
  DatasetOptions options =
      options_of(DocumentFormat::jsonl,
                 {dir.write("a.jsonl", "{\"q\": \"In the begin\", \"a\": \"ning God\"}\n{\"q\":\"\",\"a\":\"And\"}")});
  const auto tokenizer = std::shared_ptr<const Tokenizer>(
      open_tokenizer(fmt::format("{}/tests/data/tokenizers/gpt2", ZSHARD_SOURCE_ROOT)));
  options.tokenizer = tokenizer;
  options.vocab = tokenizer->vocab_size();
  options.documents.field = "a";
  options.documents.prompt_field = "q";
  options.sequence = 16;
  std::vector<std::int32_t> prompt = tokenizer->encode("In the begin"), answer = tokenizer->encode("ning God");
  std::vector<std::int32_t> wanted = prompt, targets(prompt.size() - 1, kIgnoredTarget);
  wanted.insert(wanted.end(), answer.begin(), answer.end());
  targets.insert(targets.end(), answer.begin(), answer.end());
  wanted.push_back(*tokenizer->end_of_text());
  targets.insert(targets.end(), {*tokenizer->end_of_text(), kIgnoredTarget});
  for (const int threads : {1, 3}) {
    options.threads = threads;
    const SampleSource source = open_dataset(options).train;
    REQUIRE(source.windows() == 1);
    auto [inputs, own, lengths] = source.read(0, 1);
    CHECK(lengths[0] == std::ssize(wanted));
    inputs.resize(wanted.size()), own.resize(wanted.size());
    CHECK(inputs == wanted);
    CHECK(own == targets);
  }
}

}  // namespace zs::test::framed_documents_test
