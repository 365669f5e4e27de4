#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>

#include "model/train/rank/error_line.h"
#include "model/weights/regular_file.h"
#include "model/weights/weight_export.h"
#include "model/weights/weight_files.h"
#include "tests/code_in_child.h"
#include "tests/message_of.h"
#include "tests/model/temp_dir.h"
#include "tests/train/hostile_weights.h"

namespace weights_test {

using namespace zs;
using test::TempDir;
using test::WeightCase;

namespace {

/// The error's line; empty where the weights are good. Another error than that of a model fails the test.
std::string refusal(const std::string& path) {
  try {
    const std::string table = describe_weights(path);
    CHECK(table.find("good") != std::string::npos);
    return {};
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::model);
    const std::string line = error_line(error);
    CHECK(line.size() <= 300);
    CHECK(line.find_first_of("\n\x1b") == std::string::npos);
    return line;
  }
}

std::string index_of(const std::string& map, const std::string& metadata = R"({"total_size": 6})") {
  return R"({"metadata": )" + metadata + R"(, "weight_map": )" + map + "}";
}

/// Two shards: "a" has four bytes, "b" two.
void write_shards(const TempDir& dir) {
  dir.write("one.safetensors", test::safetensors(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4));
  dir.write("two.safetensors", test::safetensors(R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2));
}

/// xorshift64
class Random {
 public:
  std::uint64_t below(std::uint64_t n) {
    state_ ^= state_ << 13, state_ ^= state_ >> 7, state_ ^= state_ << 17;
    return state_ % n;
  }

 private:
  std::uint64_t state_ = 88172645463325252ULL;
};

/// Changes some bytes, or cuts, repeats or swaps parts; half of the time the header's length is put right again.
std::string mutate(const std::string& file, Random& random) {
  static const std::string kParts[] = {
      "0",    "-1",  "9",    "18446744073709551615", "1e3", "[]", "{}", "\"a\":", ",", "null", "\"dtype\"",
      "\xc3", "8.0", "[0,0]"};
  std::string header = file.substr(8);
  const std::size_t data = header.size() - header.rfind('}') - 1;
  for (std::uint64_t i = random.below(4) + 1; i > 0; --i) {
    const std::size_t at = random.below(header.size());
    switch (random.below(4)) {
      case 0: header[at] = static_cast<char>(random.below(256)); break;
      case 1: header.erase(at, random.below(8) + 1); break;
      case 2: header.insert(at, kParts[random.below(std::size(kParts))]); break;
      default: header.insert(at, header.substr(random.below(header.size()), random.below(24)));
    }
    if (header.empty()) header = " ";
  }
  const bool is_repaired = random.below(8) != 0;
  return test::length_bytes(is_repaired ? header.size() - std::min(data, header.size())
                                        : random.below(header.size() + 2)) +
         header;
}

}  // namespace

TEST_CASE("every hostile file is refused with its reason, and every odd but valid one is read") {
  TempDir dir;
  for (const WeightCase& wanted : test::weight_cases()) {
    INFO(wanted.name);
    const std::string line = refusal(dir.write("m.safetensors", wanted.bytes));
    INFO(line);
    CHECK(line.empty() == wanted.problem.empty());
    CHECK(line.find(wanted.problem) != std::string::npos);
  }
}

TEST_CASE("what is no regular file is refused, and a link to one is read") {
  TempDir dir;
  CHECK(refusal(dir / "none").find("No such file") != std::string::npos);
  REQUIRE(::mkfifo((dir / "pipe").c_str(), 0600) == 0);
  CHECK(refusal(dir / "pipe").find("no regular file") != std::string::npos);
  CHECK(refusal("/dev/zero").find("no regular file") != std::string::npos);
  CHECK(refusal(dir.path()).find("neither model.safetensors nor") != std::string::npos);
  std::filesystem::create_symlink("loop", dir / "loop");
  CHECK(refusal(dir / "loop").find("Too many levels") != std::string::npos);
  std::filesystem::create_directory(dir / "model.safetensors");
  CHECK(refusal(dir.path()).find("no regular file") != std::string::npos);
  std::filesystem::remove(dir / "model.safetensors");
  dir.write("blobs/1234", test::safetensors("{}", 0));  // as the cache of huggingface_hub has it
  std::filesystem::create_symlink("blobs/1234", dir / "model.safetensors");
  CHECK(refusal(dir.path()).empty());
}

TEST_CASE("an index and its files must agree") {
  TempDir dir;
  write_shards(dir);
  const std::string good = R"({"a": "one.safetensors", "b": "two.safetensors"})";
  struct Case {
    std::string index, problem;
  };
  const Case cases[] = {
      {index_of(good), ""},
      {R"({"weight_map": )" + good + "}", ""},
      {index_of(good, R"({"total_size": 6.0, "total_parameters": 6})"), ""},
      {index_of(good, "[]"), "metadata is no object"},
      {index_of(R"({"a": "one.safetensors"})", "{}"), ""},  // the other file is nobody's
      {index_of(R"({"a": "../one.safetensors", "b": "two.safetensors"})"), "no file beside it"},
      {index_of(R"({"a": "/etc/passwd", "b": "two.safetensors"})"), "no file beside it"},
      {index_of(R"({"a": "..", "b": "two.safetensors"})"), "no file beside it"},
      {index_of(R"({"a": "", "b": "two.safetensors"})"), "no file beside it"},
      {index_of(R"({"a": "one\u0000", "b": "two.safetensors"})"), "no file beside it"},
      {index_of(R"({"a": "one.safetensors", "b": "three.safetensors"})"), "No such file"},
      {index_of(R"({"a": "one.safetensors", "a": "one.safetensors"})"), "occurs twice"},
      {index_of(R"({"a": 1})"), "has no file name"},
      {index_of("{}", "{}"), "has no tensor"},
      {index_of("[]"), "no weight_map"},
      {"{}", "no weight_map"},
      {"[]", "no JSON object"},
      {"", "not valid JSON"},
      {R"({"weight_map": )" + std::string(200, '['), "deeper than 128"},
      {R"({"weight_map": )" + good + ", \"metadata\": {\"total_size\": 1e999}}", "too large"},
  };
  for (const auto& [index, problem] : cases) {
    INFO(index);
    dir.write("model.safetensors.index.json", index);
    const std::string line = refusal(dir.path());
    INFO(line);
    CHECK(line.empty() == problem.empty());
    CHECK(line.find(problem) != std::string::npos);
  }
}

TEST_CASE("an index that does not say what its files are is read with a warning, as transformers reads it") {
  TempDir dir;
  write_shards(dir);
  const std::string good = R"({"a": "one.safetensors", "b": "two.safetensors"})";
  struct Case {
    std::string index, warning;
    std::size_t tensors = 2;
  };
  const Case cases[] = {
      {index_of(good), ""},
      {index_of(good, R"({"total_size": 7})"), "total_size of the index is 7, and the tensors have 6 bytes"},
      {index_of(good, R"({"total_size": 6.5})"), "total_size of the index is 6.5"},
      {index_of(good, R"({"total_size": "6"})"), "total_size of the index is no number of bytes"},
      {index_of(good, R"({"total_size": -6})"), "total_size of the index is no number of bytes"},
      {index_of(good, R"({"total_size": {"a": [1]}})"), "total_size of the index is no number of bytes"},
      {index_of(good, R"({"total_size": 18446744073709551615})"), "and the tensors have 6 bytes"},
      {index_of(R"({"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"})"),
       "not in the file where the index has it: \"c\""},
      {index_of(R"({"a": "two.safetensors", "b": "one.safetensors"})"), "the index has it: \"a\", \"b\""},
      {index_of(R"({"a": "two.safetensors", "b": "two.safetensors"})", "{}"), "the index has it: \"a\"", 1},
      {index_of(R"({"a": "one.safetensors", "c": "two.safetensors"})"), "in a file, but not in the index: \"b\""},
  };
  for (const auto& [index, warning, tensors] : cases) {
    INFO(index);
    dir.write("model.safetensors.index.json", index);
    const WeightFiles files(dir.path());
    const std::string said = fmt::format("{}", fmt::join(files.warnings(), "\n"));
    INFO(said);
    CHECK(said.empty() == warning.empty());
    CHECK(said.find(warning) != std::string::npos);
    CHECK(files.tensors().size() == tensors);
    CHECK(describe_weights(dir.path()).find(warning) != std::string::npos);
  }
}

TEST_CASE("a file belongs to a model where its folder, or its place in the hub's cache, has it") {
  TempDir dir;
  dir.write("secret", "a secret");
  dir.write("hub/blobs/1234", "{}");
  dir.write("hub/snapshots/5678/tokenizer.json", "{}");
  const std::string folder = dir / "hub/snapshots/5678";
  const auto link = [&](const std::string& to, const std::string& name) {
    std::filesystem::create_symlink(to, folder + "/" + name);
  };
  link("../../blobs/1234", "tokenizer_config.json");
  link("tokenizer.json", "vocab.json");
  link("../../../secret", "added_tokens.json");
  link(dir / "secret", "merges.txt");
  link("/dev/zero", "chat_template.jinja");
  link("nowhere", "chat_template.json");
  std::filesystem::create_directory_symlink(folder, dir / "model");
  for (const std::string& from : {folder, dir / "model"}) {
    TempDir to;
    const std::vector<std::string> left_out = copy_companions(from, from, to.path());
    CHECK(left_out.size() == 2);
    CHECK(left_out.front().find("added_tokens.json is a link that leads out") != std::string::npos);
    CHECK(to.entries() == 3);
    CHECK(test::read_file(to / "tokenizer_config.json") == "{}");
    CHECK(test::read_file(to / "vocab.json") == "{}");
  }
  std::filesystem::remove_all(dir / "hub/blobs");  // then the folder alone is the model
  dir.write("hub/other", "{}");
  link("../../other", "special_tokens_map.json");
  CHECK_FALSE(file_of_model(folder, "special_tokens_map.json"));
  CHECK(file_of_model(folder, "vocab.json"));
}

TEST_CASE("a tensor in two files of an index is refused") {
  TempDir dir;
  write_shards(dir);
  dir.write("two.safetensors", test::safetensors(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2));
  dir.write("model.safetensors.index.json", index_of(R"({"a": "one.safetensors", "b": "two.safetensors"})"));
  CHECK(refusal(dir.path()).find("is in one.safetensors, too") != std::string::npos);
}

TEST_CASE("one file goes before an index, and bytes are read from where they are") {
  TempDir dir;
  write_shards(dir);
  dir.write("model.safetensors.index.json", index_of(R"({"a": "one.safetensors", "b": "two.safetensors"})"));
  WeightFiles shards(dir.path());
  std::string data(3, ' ');
  dir.write("one.safetensors", test::read_file(dir / "one.safetensors"));
  shards.read("b", 0, data.data(), 2);
  CHECK(data == "\2\2 ");
  CHECK_THROWS_WITH(shards.read("a", 0, data.data(), 3), Catch::Contains("changed while it was read"));
  CHECK_THROWS_WITH(shards.read("b", 1, data.data(), 2), Catch::Contains("2 bytes at 1"));
  dir.write("model.safetensors", test::safetensors(R"({"c":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1));
  CHECK(WeightFiles(dir.path()).find("c") != nullptr);
  CHECK(WeightFiles(dir.path()).find("a") == nullptr);
}

TEST_CASE("whatever a damaged header says, it is refused or describes every byte once") {
  TempDir dir;
  const std::string seeds[] = {
      test::safetensors(
          R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"F16","shape":[2,1],"data_offsets":[4,8]}})",
          8),
      test::safetensors(R"({"__metadata__":{"format":"pt"},"x.y":{"data_offsets":[0,8],"shape":[2],"dtype":"F32"}})",
                        8)};
  Random random;
  int accepted = 0;
  for (int i = 0; i < 40'000; ++i) {
    const std::string file = mutate(seeds[i % 2], random);
    try {
      const std::int64_t size = std::ssize(file), length = safetensors_header_bytes(file, size, "f");
      const auto header = parse_safetensors_header(std::string_view(file).substr(8, static_cast<std::size_t>(length)),
                                                   size - 8 - length, "f");
      std::int64_t end = 0;
      for (const auto& tensor : header.tensors) {
        REQUIRE(tensor.begin == end);
        REQUIRE((tensor.end - tensor.begin) * 8 == tensor.elems() * bits_of(tensor.dtype));
        end = tensor.end;
      }
      REQUIRE(end == size - 8 - length);
      ++accepted;
    } catch (const Error& error) {
      REQUIRE(error.code() == ExitCode::model);
    }
  }
  CHECK(accepted > 100);  // so that it did not end at the first byte each time
}

TEST_CASE("f16 and bf16 become f32 and come back as they were, NaN apart from its sign bit's neighbours") {
  for (const FileDType dtype : {FileDType::f16, FileDType::bf16}) {
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
      const auto stored = static_cast<std::uint16_t>(bits);
      float value = 0;
      to_f32(dtype, &stored, &value, 1);
      std::uint16_t back = 0;
      from_f32(dtype, &value, &back, 1);
      const std::uint32_t quiet = dtype == FileDType::f16 ? 0x200u : 0x40u;
      if (std::isnan(value)) REQUIRE((back | quiet) == (bits | quiet));
      if (!std::isnan(value)) REQUIRE(back == bits);
    }
  }
}

TEST_CASE("f32 becomes the nearest f16, the even one of two") {
  const auto f16 = [](float value) {
    std::uint16_t bits = 0;
    from_f32(FileDType::f16, &value, &bits, 1);
    return bits;
  };
  CHECK(f16(1.0f) == 0x3c00);
  CHECK(f16(-2.0f) == 0xc000);
  CHECK(f16(65504.0f) == 0x7bff);
  CHECK(f16(65519.99f) == 0x7bff);
  CHECK(f16(65520.0f) == 0x7c00);
  CHECK(f16(std::numeric_limits<float>::infinity()) == 0x7c00);
  CHECK(f16(1.0f + 0x1p-11f) == 0x3c00);     // halfway: to even
  CHECK(f16(1.0f + 0x3p-11f) == 0x3c02);     // halfway: to even, above
  CHECK(f16(1.0f + 0x1.01p-11f) == 0x3c01);  // above halfway
  CHECK(f16(0x1p-24f) == 0x0001);            // the least
  CHECK(f16(0x1p-25f) == 0x0000);            // halfway to 0
  CHECK(f16(0x1.8p-24f) == 0x0002);          // halfway: to even
  CHECK(f16(0x1.ff8p-15f) == 0x03ff);        // the largest below the normal ones
  CHECK(f16(0x1.ffcp-15f) == 0x0400);        // halfway: to even, a normal one
  CHECK(f16(-0.0f) == 0x8000);
  float two[2] = {};
  const char odd[] = {0, 0x00, 0x3c, 0x00, 0x40};  // at an odd address
  to_f32(FileDType::f16, odd + 1, two, 2);
  CHECK(two[0] == 1.0f);
  CHECK(two[1] == 2.0f);
}

TEST_CASE("an export that is killed while it gets its name leaves nothing that the next one does not remove") {
  const TempDir dir;
  const std::string path = dir / "tuned";
  const bool replaces = GENERATE(false, true);
  const auto may_replace = [](const std::string&) { return true; };
  const auto write = [&](const std::function<void()>& before) {
    OutputFolder folder(path, may_replace);
    std::ofstream(std::filesystem::path(folder.writing()) / "model.safetensors") << "whole";
    folder.commit(before);
  };
  if (replaces) write([] {});
  CHECK(test::code_in_child([&] { write([] { ::_exit(9); }); }) == 9);
  const auto names = [](const std::string& of) {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(of)) found.push_back(entry.path().filename().string());
    return found;
  };
  CHECK(names(dir.path()).size() == (replaces ? 2 : 1));
  write([] {});
  CHECK(names(dir.path()) == std::vector<std::string>{"tuned"});
  CHECK(names(path) == std::vector<std::string>{"model.safetensors"});
}

}  // namespace weights_test
