#include "model/families/gguf_blocks.h"

#include <catch2/catch.hpp>

#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "runtime/base/check.h"
#include "tests/message_of.h"

namespace zs::test::gguf_blocks_test {
namespace {

std::vector<char> bytes_of(const std::string& file) {
  std::ifstream in(fmt::format("{}/tests/data/gguf/{}", ZSHARD_SOURCE_ROOT, file), std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<float> numbers() {
  const std::vector<char> bytes = bytes_of("numbers.f32");
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::vector<char> stored(GgufDType dtype, const std::vector<float>& values) {
  std::vector<char> out(static_cast<std::size_t>(stored_bytes(dtype, std::ssize(values))));
  store_numbers(dtype, values.data(), std::ssize(values), out.data(), "blk.0.ffn_up.weight");
  return out;
}

}  // namespace

TEST_CASE("numbers in blocks of a GGUF file are those of ggml's reference quantizer, byte by byte") {
  const auto [dtype, file] = GENERATE(table<GgufDType, std::string>(
      {{GgufDType::q8_0, "q8_0.bin"}, {GgufDType::q6_k, "q6_K.bin"}, {GgufDType::q4_k, "q4_K.bin"}}));
  const std::vector<float> values = numbers();
  REQUIRE(values.size() == 24 * 256);
  const std::vector<char> wanted = bytes_of(file), got = stored(dtype, values);
  REQUIRE(got.size() == wanted.size());
  const auto first = std::mismatch(got.begin(), got.end(), wanted.begin()).first - got.begin();
  CAPTURE(file);
  CHECK(first == std::ssize(got));
}

TEST_CASE("a number that a block of a GGUF file cannot hold is refused") {
  const GgufDType dtype = GENERATE(GgufDType::q8_0, GgufDType::q6_k, GgufDType::q4_k);
  std::vector<float> values(256, 0.5f);
  values[200] = std::numeric_limits<float>::quiet_NaN();
  CHECK_THAT(message_of([&] { stored(dtype, values); }), Catch::Contains("a weight is nan"));
  values[200] = std::numeric_limits<float>::infinity();
  CHECK_THAT(message_of([&] { stored(dtype, values); }), Catch::Contains("a weight is inf"));
  values[200] = 1e9f;  // whose scale f16 has not
  CHECK_THAT(message_of([&] { stored(dtype, values); }), Catch::Contains("blk.0.ffn_up.weight"));
}

}  // namespace zs::test::gguf_blocks_test
