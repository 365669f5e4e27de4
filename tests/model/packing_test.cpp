// Documents from files to packed sequences.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cctype>
#include <cmath>
#include <map>
#include <numeric>

#include "model/data/dataset.h"
#include "runtime/tensor/reduction.h"
#include "tests/model/temp_dir.h"

namespace zs::test::packing_test {
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

/// A sequence as it is trained on.
struct Row {
  std::string inputs, targets;  // '.' for what is ignored, '_' for padding
  std::vector<std::int64_t> lengths;
  bool operator==(const Row&) const = default;
};

Row row_of(const SampleSource& source, std::int64_t sample) {
  const SampleBatch batch = source.read(sample, 1);
  Row row;
  row.lengths = batch.lengths;
  for (const std::int32_t id : batch.inputs) row.inputs += id == 0 ? '_' : static_cast<char>(id);
  for (const std::int32_t id : batch.targets) row.targets += id == kIgnoredTarget ? '.' : static_cast<char>(id);
  return row;
}

/// Documents and what each of them has as targets.
std::multimap<std::string, std::string> documents_of(const SampleSource& source) {
  std::multimap<std::string, std::string> documents;
  for (std::int64_t i = 0; i < source.windows(); ++i) {
    const Row row = row_of(source, i);
    std::size_t at = 0;
    for (const std::int64_t length : row.lengths) {
      const auto count = static_cast<std::size_t>(length);
      if (row.inputs[at] != '_') documents.emplace(row.inputs.substr(at, count), row.targets.substr(at, count));
      at += count;
    }
    CHECK(at == kSequence);
  }
  return documents;
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

using Documents = std::multimap<std::string, std::string>;

}  // namespace

TEST_CASE("documents go where they leave the least room, the longest first") {
  const Packing packing = pack({3, 8, 5, 2, 6, 1}, 8);
  CHECK(packing.order == std::vector<std::int64_t>{1, 4, 3, 2, 0, 5});
  CHECK(packing.begin == std::vector<std::int64_t>{0, 1, 3, 5, 6});
  CHECK(pack({}, 8).begin == std::vector<std::int64_t>{0});
  CHECK_THROWS_AS(pack({9}, 8), Error);
}

TEST_CASE("lines, files and JSON fields are documents, and their last token has no target") {
  TempDir dir;
  const Documents wanted = {{"abc", "bc."}, {"de", "e."}, {"fghij", "ghij."}, {"k", "."}};
  const auto of = [](DocumentFormat format, std::vector<std::string> files) {
    return documents_of(open_dataset(options_of(format, std::move(files))).train);
  };
  CHECK(of(DocumentFormat::lines, {dir.write("a.txt", "abc\nde\r\nfghij\nk")}) == wanted);
  CHECK(of(DocumentFormat::lines, {dir.write("a.txt", "abc\nde\n"), dir.write("b.txt", "fghij\nk\n")}) == wanted);
  dir.write("folder/1.txt", "abc");
  dir.write("folder/2.txt", "de");
  dir.write("folder/3.txt", "fghij");
  dir.write("folder/4.txt", "k");
  CHECK(of(DocumentFormat::files, {dir / "folder"}) == wanted);
  dir.write("json/a.jsonl",
            "{\"text\": \"abc\", \"n\": [1]}\n{\"text\":\"\\u0064e\"}\n{\"text\":\"fghij\"}\n{\"text\":\"k\"}");
  dir.write("json/notes.md", "not one of them");
  CHECK(of(DocumentFormat::jsonl, {dir / "json"}) == wanted);
}

TEST_CASE("packed sequences are full of whole documents, and padding is a document that counts for nothing") {
  TempDir dir;
  const SampleSource source =
      open_dataset(options_of(DocumentFormat::lines, {dir.write("a.txt", "abcde\nfg\nhij\nklmn")})).train;
  CHECK(source.tokens() == 14);
  REQUIRE(source.windows() == 2);
  std::vector<Row> rows = {row_of(source, 0), row_of(source, 1)};
  if (rows[0].inputs != "abcdehij") std::swap(rows[0], rows[1]);
  CHECK(rows[0] == Row{"abcdehij", "bcde.ij.", {5, 3}});
  CHECK(rows[1] == Row{"klmnfg__", "lmn.g...", {4, 2, 2}});
}

TEST_CASE("each epoch draws every packed sequence once, in an order of its own") {
  TempDir dir;
  std::string text;
  for (char c = 'a'; c <= 'z'; ++c) text += std::string(7, c) + "\n";
  const SampleSource source = open_dataset(options_of(DocumentFormat::lines, {dir.write("a.txt", text)})).train;
  REQUIRE(source.windows() == 26);
  std::string orders[2];
  for (std::int64_t i = 0; i < 52; ++i) orders[i / 26] += row_of(source, i).inputs[0];
  CHECK(orders[0] != orders[1]);
  for (std::string& order : orders) {
    std::sort(order.begin(), order.end());
    CHECK(order == "abcdefghijklmnopqrstuvwxyz");
  }
}

TEST_CASE("a prompt is seen, and is no target") {
  TempDir dir;
  DatasetOptions options = options_of(DocumentFormat::jsonl, {dir.write("a.jsonl",
                                                                        "{\"q\": \"abc\", \"a\": \"de\"}\n"
                                                                        "{\"q\": \"\", \"a\": \"fgh\"}\n")});
  options.documents.field = "a";
  options.documents.prompt_field = "q";
  CHECK(documents_of(open_dataset(options).train) == Documents{{"abcde", "..de."}, {"fgh", "gh."}});
}

TEST_CASE("a document that is longer than a sequence is refused, cut short, or cut into parts") {
  TempDir dir;
  DatasetOptions options = options_of(DocumentFormat::lines, {dir.write("a.txt", "ab\nabcdefghijklmnopqrs\n")});
  const Error error = refusal(options);
  CHECK(error.code() == ExitCode::dataset);
  CHECK(error.what_happened() == "the document has 19 tokens, and a sequence 8");
  CHECK(error.where() == dir / "a.txt:2");
  DatasetOptions many = options;
  many.train = {dir.write("m.txt", "ab\nabcdefghi\nabcdefghijklm\nabcdefghij\n")};
  CHECK(refusal(many).what_happened() == "the document has 9 tokens, and a sequence 8 (3 of 4 documents are too long)");
  CHECK_THAT(refusal(many).what_to_do(), Catch::Contains("train.sequence to 13"));
  options.documents.overlong = Overlong::truncate;
  CHECK(documents_of(open_dataset(options).train) == Documents{{"ab", "b."}, {"abcdefgh", "bcdefgh."}});
  options.documents.overlong = Overlong::split;
  CHECK(documents_of(open_dataset(options).train) ==
        Documents{{"ab", "b."}, {"abcdefgh", "bcdefghi"}, {"ijklmnop", "jklmnopq"}, {"qrs", "rs."}});

  DatasetOptions prompted =
      options_of(DocumentFormat::jsonl, {dir.write("a.jsonl", "{\"q\": \"abcdefghij\", \"text\": \"kl\"}\n")});
  prompted.documents.prompt_field = "q";
  prompted.documents.overlong = Overlong::split;
  CHECK(documents_of(open_dataset(prompted).train) == Documents{{"abcdefgh", "........"}, {"ijkl", ".kl."}});
  prompted.documents.overlong = Overlong::truncate;
  CHECK(refusal(prompted).what_happened() == "the prompt has 10 tokens, and fills the sequence of 8");
  prompted.train = {dir.write("b.jsonl", "{\"q\": \"abcdefgh\", \"text\": \"kl\"}\n")};
  CHECK(refusal(prompted).what_happened() == "the prompt has 8 tokens, and fills the sequence of 8");
}

TEST_CASE("without a sequence length it is the longest document's, within a limit") {
  TempDir dir;
  DatasetOptions options = options_of(DocumentFormat::lines, {dir.write("a.txt", "ab\nabcdef\nabc\n")});
  options.sequence = 0;
  options.most_sequence = 100;
  CHECK(open_dataset(options).train.sequence() == 6);
  options.validation = {dir.write("v.txt", "abcdefg\n")};
  CHECK(open_dataset(options).train.sequence() == 7);
  options.most_sequence = 5;
  CHECK(refusal(options).what_happened() == "the document has 6 tokens, and a sequence 5");
}

TEST_CASE("the last documents are kept for validation, whole") {
  TempDir dir;
  DatasetOptions options = options_of(DocumentFormat::lines, {dir.write("a.txt", "ab\ncd\nef\nghijklmnopqr\n")});
  options.documents.overlong = Overlong::split;
  options.validation_fraction = 0.1;
  const Dataset data = open_dataset(options);
  CHECK(documents_of(data.train) == Documents{{"ab", "b."}, {"cd", "d."}, {"ef", "f."}});
  CHECK(documents_of(*data.validation) == Documents{{"ghijklmn", "hijklmno"}, {"opqr", "pqr."}});
  const DataFacts facts = facts_of(data);
  options.validation = {dir.write("v.txt", "xyz\n")};
  CHECK(documents_of(*open_dataset(options).validation) == Documents{{"xyz", "yz."}});
  options.validation = {};
  dir.write("a.txt", "abc\nd\nef\nghijklmnopqr\n");
  CHECK(facts_of(open_dataset(options)).train_tokens == facts.train_tokens);
  CHECK(facts_of(open_dataset(options)).train_digest != facts.train_digest);
  options.train = {dir.write("one.txt", "alone\n")};
  CHECK_THAT(refusal(options).what_happened(), Catch::Contains("one document is not enough"));
}

TEST_CASE("each source has its share of the samples, after any number of them to within one") {
  const std::vector<double> weights = {5, 1, 2.5};
  const SourceMixture mixture(weights);
  CHECK(mixture.counts() == std::vector<std::int64_t>{5882, 1177, 2941});
  std::vector<std::int64_t> taken(3, 0);
  for (std::int64_t sample = 0; sample < 25'000; ++sample) {
    const SourceMixture::Place place = mixture.at(sample);
    REQUIRE(place.sample == taken[place.source]++);  // a source's own samples in order, none twice
    for (std::size_t i = 0; i < 3; ++i)
      REQUIRE(std::abs(static_cast<double>(taken[i]) - weights[i] / 8.5 * static_cast<double>(sample + 1)) < 2);
  }
}

TEST_CASE("sources with weights are drawn each in its own order") {
  TempDir dir;
  std::string lower, upper;
  for (char c = 'a'; c <= 'f'; ++c) lower += std::string(8, c) + "\n";
  for (char c = 'A'; c <= 'C'; ++c) upper += std::string(8, c) + "\n";
  DatasetOptions options =
      options_of(DocumentFormat::lines, {dir.write("lower.txt", lower), dir.write("upper.txt", upper)});
  options.weights = {1, 3};
  options.validation = {dir.write("v.txt", "xyz\n")};
  const Dataset data = open_dataset(options);
  CHECK(data.train.windows() == 9);
  CHECK(data.train.tokens() == 72);
  CHECK(data.files == std::vector<std::string>{dir / "lower.txt", dir / "upper.txt", dir / "v.txt"});
  CHECK(documents_of(*data.validation) == Documents{{"xyz", "yz."}});
  std::string drawn[2];
  for (std::int64_t i = 0; i < 24; ++i) {
    const char first = row_of(data.train, i).inputs[0];
    drawn[std::isupper(static_cast<unsigned char>(first)) != 0 ? 1 : 0] += first;
  }
  REQUIRE(drawn[0].size() == 6);
  std::sort(drawn[0].begin(), drawn[0].end());
  CHECK(drawn[0] == "abcdef");
  for (std::size_t epoch = 0; epoch < 6; ++epoch) {
    std::string own = drawn[1].substr(3 * epoch, 3);
    std::sort(own.begin(), own.end());
    CHECK(own == "ABC");
  }
  const std::string digest = facts_of(data).train_digest;
  dir.write("upper.txt", upper.substr(9) + "DDDDDDDD\n");
  CHECK(facts_of(open_dataset(options)).train_digest != digest);
}

TEST_CASE("bad documents are refused with file and line") {
  struct Case {
    DocumentFormat format;
    std::string text, what;
    std::int64_t line;
  };
  const DocumentFormat jsonl = DocumentFormat::jsonl;
  const Case test = GENERATE_COPY(from_range(std::vector<Case>{
      {jsonl, "{\"text\": \"a\"}\n{\"text\": \"b\"\n", "the line is not JSON, from its byte 13 on", 2},
      {jsonl, "{\"text\": \"a\"}\n\n{\"text\": \"b\"}\n", "the line is empty, and no JSON object", 2},
      {jsonl, "{\"text\": \"a\"}\n[\"text\"]\n", "the line is a JSON array, not an object", 2},
      {jsonl, "{\"body\": \"a\"}\n", "the line has no field \"text\"", 1},
      {jsonl, "{\"text\": 3}\n", "the field \"text\" is a JSON number, not a string", 1},
      {jsonl, "{\"text\": null}\n", "the field \"text\" is a JSON null, not a string", 1},
      {jsonl, "{\"text\": \"\"}\n", "the document is empty: its field \"text\" has no text", 1},
      {jsonl, "{\"text\": \"\xff\"}\n", "the line is not JSON, from its byte 11 on", 1},
      {jsonl, "{\"text\": \"a\", \"n\": 1e999}\n", "the line has a number that is too large, at its byte 25", 1},
      {jsonl, "{\"text\": \"a\", \"n\": " + std::string(200, '['), "the line nests deeper than 128, at its byte 147",
       1},
      {jsonl, std::string("{\"text\": \"a\"}\0x\n", 16), "the line has a NUL byte, at its byte 13", 1},
      {DocumentFormat::lines, "a\nb\n\nc\n", "the document is empty: the line has no text", 3},
      {DocumentFormat::lines, "a\r\n\r\nc\n", "the document is empty: the line has no text", 2},
      {DocumentFormat::files, "", "the document is empty: the file has no text", 0},
      {DocumentFormat::lines, "", "the data has no documents", 0}}));
  TempDir dir;
  const Error error = refusal(options_of(test.format, {dir.write("a.jsonl", test.text)}));
  CAPTURE(test.text);
  CHECK(error.code() == ExitCode::dataset);
  CHECK(error.what_happened() == test.what);
  CHECK(error.where() == dir / (test.line > 0 ? fmt::format("a.jsonl:{}", test.line) : "a.jsonl"));
  CHECK_FALSE(error.what_to_do().empty());
}

TEST_CASE(
    "a field that comes twice has its last value, fields within others are none, and a byte order mark is no JSON") {
  TempDir dir;
  const std::string text =
      "\xef\xbb\xbf{\"text\": [{\"text\": \"a\"}], \"x\": {\"text\": \"b\"}, \"text\": \"c\\u0064\"}\n";
  const auto documents =
      read_documents({dir.write("a.jsonl", text)}, {.format = DocumentFormat::jsonl, .field = "text"});
  REQUIRE(documents.size() == 1);
  CHECK(documents.front().text == "cd");
  const auto both =
      read_documents({dir / "a.jsonl"}, {.format = DocumentFormat::jsonl, .field = "text", .prompt_field = "text"});
  CHECK(both.front().prompt == "cd");
}

TEST_CASE("what is wrong with a line is answered with what helps") {
  TempDir dir;
  const auto advice = [&](const std::string& text) {
    return refusal(options_of(DocumentFormat::jsonl, {dir.write("a.jsonl", text)})).what_to_do();
  };
  CHECK_THAT(advice("[{\"text\": \"a\"}]\n"), Catch::Contains("jq -c"));
  CHECK_THAT(advice("[\n  {\"text\": \"a\"}\n]\n"), Catch::Contains("jq -c"));
  CHECK_THAT(advice("{\"x\": NaN, \"text\": \"a\"}\n"), Catch::Contains("NaN"));
  CHECK_THAT(advice("{\"x\": -Infinity, \"text\": \"a\"}\n"), Catch::Contains("Infinity"));
  CHECK_THAT(advice("{\"text\": \"a\\ud83d\"}\n"), Catch::Contains("half a character"));
  CHECK_THAT(advice("{\"text\": \"a\""), Catch::Contains("ends within"));
  CHECK_THAT(advice("{\"text\": 'a'}\n"), Catch::StartsWith("write one JSON object a line"));
  CHECK_THAT(advice("{\"messages\": [{\"role\": \"user\"}]}\n"), Catch::Contains("data.format = \"chat\""));
  CHECK_THAT(advice("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"),
             Catch::Contains("git lfs pull"));
  const SampleSource source =
      open_dataset(options_of(DocumentFormat::jsonl, {dir.write("b.jsonl", "{\"text\": \"ab\"}\n\n  \n")})).train;
  CHECK(source.documents() == 1);
}

TEST_CASE("a missing field is refused with those that there are") {
  TempDir dir;
  DatasetOptions options =
      options_of(DocumentFormat::jsonl, {dir.write("a.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n")});
  CHECK(refusal(options).what_to_do() == "set data.field to one of its fields: prompt, completion");
  options.documents.field = "completion";
  options.documents.prompt_field = "question";
  CHECK(refusal(options).what_to_do() == "set data.prompt_field to one of its fields: prompt, completion");
}

}  // namespace zs::test::packing_test
