#include "model/weights/safetensors.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tests/model/temp_dir.h"

namespace safetensors_test {

using namespace zs;
using nlohmann::json;
using test::TempDir;

namespace {

struct Parsed {
  json header;
  std::string header_text, data;
};

/// A reader of its own: length, header, data.
Parsed parse(const std::string& path) {
  const std::string file = test::read_file(path);
  REQUIRE(file.size() >= 8);
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  REQUIRE(length <= file.size() - 8);
  const std::string text = file.substr(8, length);
  return {json::parse(text), text, file.substr(8 + length)};
}

Buffer floats(std::vector<float>& values) {
  return {values.data(), static_cast<std::int64_t>(values.size()), DType::f32, DeviceKind::cpu};
}

}  // namespace

TEST_CASE("a written file parses back to the same tensors") {
  TempDir dir;
  std::vector<float> w = {1, 2, 3, 4, 5, 6}, s = {7};
  std::vector<BFloat16> h = {BFloat16(1.5f), BFloat16(-2.0f), BFloat16(0.25f)};
  SafetensorsWriter writer(dir / "m.safetensors",
                           {{"zeta.weight", DType::f32, {2, 3}},
                            {"h", DType::bf16, {3}},
                            {"empty", DType::i64, {0, 5}},
                            {"scalar", DType::f32, {}}},
                           {{"format", "pt"}});
  writer.append_tensor("zeta.weight", floats(w));
  writer.append_tensor("h", {h.data(), 3, DType::bf16, DeviceKind::cpu});
  writer.append_tensor("empty", {nullptr, 0, DType::i64, DeviceKind::cpu});
  writer.append_tensor("scalar", floats(s));
  writer.finish();

  const Parsed file = parse(dir / "m.safetensors");
  CHECK(file.header_text.size() % 8 == 0);
  CHECK(file.header_text.front() == '{');
  CHECK(file.header_text.find_last_not_of(' ') == file.header_text.rfind('}'));
  CHECK(file.header == json::parse(R"({"__metadata__": {"format": "pt"},
      "zeta.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
      "h": {"dtype": "BF16", "shape": [3], "data_offsets": [24, 30]},
      "empty": {"dtype": "I64", "shape": [0, 5], "data_offsets": [30, 30]},
      "scalar": {"dtype": "F32", "shape": [], "data_offsets": [30, 34]}})"));
  REQUIRE(file.data.size() == 34);
  CHECK(std::memcmp(file.data.data(), w.data(), 24) == 0);
  CHECK(std::memcmp(file.data.data() + 24, h.data(), 6) == 0);
  CHECK(std::memcmp(file.data.data() + 30, s.data(), 4) == 0);
  CHECK(file.header_text.find("zeta") < file.header_text.find("\"h\""));  // as the offsets, not as the alphabet
  CHECK(dir.entries() == 1);
}

TEST_CASE("data may come in pieces of any size") {
  TempDir dir;
  SafetensorsWriter writer(dir / "m", {{"a", DType::u8, {10}}, {"b", DType::u8, {2}}});
  writer.append("0123456", 7);
  writer.append("789ab", 5);
  writer.finish();
  CHECK(parse(dir / "m").data == "0123456789ab");
}

TEST_CASE("a file of no tensors is valid") {
  TempDir dir;
  SafetensorsWriter(dir / "m", {}).finish();
  CHECK(parse(dir / "m").header == json::object());
  CHECK(test::read_file(dir / "m").size() == 16);
}

TEST_CASE("names are escaped") {
  TempDir dir;
  const std::string odd = "quote\" back\\ \n \x01 \xc3\xa4";
  SafetensorsWriter(dir / "m", {{odd, DType::u8, {0}}}).finish();
  CHECK(parse(dir / "m").header.contains(odd));
  CHECK_THROWS_AS(SafetensorsWriter(dir / "n", {{"\xff", DType::u8, {0}}}), Error);
}

TEST_CASE("bad names, sizes and orders are refused") {
  TempDir dir;
  const std::string path = dir / "m";
  const std::int64_t huge = std::int64_t{1} << 40;
  CHECK_THROWS_WITH(SafetensorsWriter(path, {{"__metadata__", DType::f32, {1}}}), Catch::Contains("cannot be named"));
  CHECK_THROWS_WITH(SafetensorsWriter(path, {{"", DType::f32, {1}}}), Catch::Contains("cannot be named"));
  CHECK_THROWS_WITH(SafetensorsWriter(path, {{"a", DType::f32, {1}}, {"a", DType::f32, {1}}}),
                    Catch::Contains("two tensors named a"));
  CHECK_THROWS_WITH(SafetensorsWriter(path, {{"a", DType::f32, {huge, huge}}}),
                    Catch::Contains("more elements than can be counted"));
  const Shape half = {huge, 1 << 19};  // 2^61 bytes
  CHECK_THROWS_WITH(
      SafetensorsWriter(
          path, {{"a", DType::f32, half}, {"b", DType::f32, half}, {"c", DType::f32, half}, {"d", DType::f32, half}}),
      Catch::Contains("too large"));

  std::vector<float> values(2);
  SafetensorsWriter writer(path, {{"a", DType::f32, {2}}, {"b", DType::f32, {1}}});
  CHECK_THROWS_WITH(writer.append_tensor("b", floats(values)), Catch::Contains("not the next"));
  CHECK_THROWS_WITH(writer.append(values.data(), 13), Catch::Contains("13 bytes after 0 of 12"));
  writer.append_tensor("a", floats(values));
  CHECK_THROWS_WITH(writer.append_tensor("b", floats(values)), Catch::Contains("8 bytes at 8"));
  CHECK_THROWS_WITH(writer.finish(), Catch::Contains("8 of 12 bytes"));
}

TEST_CASE("an unfinished file leaves nothing and an older one in place") {
  TempDir dir;
  dir.write("m", "older");
  {
    SafetensorsWriter writer(dir / "m", {{"a", DType::u8, {2}}});
    writer.append("x", 1);
  }
  CHECK(dir.entries() == 1);
  CHECK(test::read_file(dir / "m") == "older");
}

}  // namespace safetensors_test
