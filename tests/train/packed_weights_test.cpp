// Parameters that files have as packed matrices, transposed and with alternate rows, in numbers and in MXFP4.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "model/weights/safetensors.h"
#include "model/weights/weight_export.h"
#include "model/weights/weight_import.h"
#include "tests/message_of.h"
#include "tests/model/temp_dir.h"

namespace packed_weights_test {

using namespace zs;
using test::TempDir;

namespace {

constexpr std::int64_t kMatrices = 3, kHalf = 5, kRows = 2 * kHalf, kColumns = 64;

/// Rule of a parameter (kMatrices kRows, ...), whose matrices have two runs of rows.
TensorMap map_of(bool is_transposed) {
  return {.rules = {{.parameter = "p",
                     .parts = {{"packed"}},
                     .is_transposed = is_transposed,
                     .matrices = kMatrices,
                     .interleaved = 2}}};
}

void write_file(const std::string& path, const std::vector<TensorEntry>& entries, const std::string& bytes) {
  SafetensorsWriter writer(path, entries);
  writer.append(bytes.data(), std::ssize(bytes));
  writer.finish();
}

/// Element of matrix m, run g (0: gates), row i of it, column c, at its place in a file.
std::int64_t place_of(bool is_transposed, std::int64_t row, std::int64_t c, std::int64_t columns) {
  const std::int64_t m = row / kRows, g = row % kRows / kHalf, i = row % kHalf, line = 2 * i + g;
  return m * kRows * columns + (is_transposed ? c * kRows + line : line * columns + c);
}

/// Numbers that say where they are.
std::string numbered(std::int64_t count) {
  std::string bytes(static_cast<std::size_t>(count) * 4, '\0');
  for (std::int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(i);
    std::memcpy(bytes.data() + i * 4, &value, 4);
  }
  return bytes;
}

/// Blocks of all shapes: whole, single rows, halves, some columns, and flat shards of several ranks.
std::vector<Block> some_blocks(std::int64_t columns) {
  const std::int64_t rows = kMatrices * kRows;
  std::vector<Block> blocks = {{0, rows, 0, columns}, {3, 1, 0, columns}, {kHalf - 1, 2, 0, columns}, {7, 16, 0, 1}};
  if (columns > 1) blocks.insert(blocks.end(), {{0, rows, 5, 7}, {4, 13, columns - 3, 3}});
  for (const std::int64_t ranks : {2, 3, 7})
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const std::int64_t first = rows * columns * rank / ranks, count = rows * columns * (rank + 1) / ranks - first;
      for (const Block& block : blocks_of(first, count, count, count, columns)) blocks.push_back(block);
    }
  return blocks;
}

void check_blocks(WeightImport& weights, std::int64_t columns,
                  const std::function<float(std::int64_t row, std::int64_t column)>& expected) {
  for (const Block& block : some_blocks(columns)) {
    CAPTURE(block.row, block.rows, block.column, block.columns);
    std::vector<float> out(static_cast<std::size_t>(block.rows * block.columns), -1);
    weights.read("p", block, out.data());
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < std::ssize(out); ++i) {
      const float got = out[static_cast<std::size_t>(i)],
                  want = expected(block.row + i / block.columns, block.column + i % block.columns);
      const bool are_nan = std::isnan(got) && std::isnan(want);
      wrong += !are_nan && std::memcmp(&got, &want, sizeof got) != 0 ? 1 : 0;
    }
    CHECK(wrong == 0);
  }
}

class Whole final : public ParameterSource {
 public:
  Whole(const Shape& shape, std::vector<float> values) : parameters_{{"p", shape}}, values_(std::move(values)) {}
  const std::vector<ParameterShape>& parameters() const override { return parameters_; }
  void read(const std::string&, std::int64_t first, std::int64_t count, float* out) override {
    std::copy_n(values_.begin() + first, count, out);
  }

 private:
  std::vector<ParameterShape> parameters_;
  std::vector<float> values_;
};

/// The number that a code of E2M1 stands for: a sign, two bits of exponent (bias 1) and one of mantissa.
double of_e2m1(unsigned code) {
  const double mantissa = code & 1u, exponent = code >> 1 & 3u;
  const double magnitude = exponent == 0 ? mantissa / 2 : (1 + mantissa / 2) * std::pow(2.0, exponent - 1);
  return (code & 8u) != 0 ? -magnitude : magnitude;
}

/// Blocks (kMatrices, kRows, 2, 16) and scales (kMatrices, kRows, 2): all bytes, and exponents at the ends.
struct Quantized {
  std::string blocks, scales;
};
Quantized quantized() {
  Quantized all;
  for (std::int64_t i = 0; i < kMatrices * kRows * kColumns / 2; ++i)
    all.blocks.push_back(static_cast<char>(i * 37 + i / 256));
  const unsigned exponents[] = {0, 1, 2, 100, 126, 127, 128, 140, 252, 255};
  for (std::int64_t i = 0; i < kMatrices * kRows * kColumns / 32; ++i)
    all.scales.push_back(static_cast<char>(exponents[i * 7 % 10]));
  return all;
}

std::string quantized_file(const TempDir& dir, const Shape& blocks, const Shape& scales,
                           FileDType dtype = FileDType::u8) {
  const Quantized all = quantized();
  const std::string path = dir / "model.safetensors";
  write_file(path, {{"packed_blocks", FileDType::u8, blocks}, {"packed_scales", dtype, scales}},
             all.blocks + all.scales);
  return path;
}

const Shape kBlocks{kMatrices, kRows, kColumns / 32, 16}, kScales{kMatrices, kRows, kColumns / 32};
const std::vector<ParameterShape> kParameters{{"p", {kMatrices * kRows, kColumns}}};

}  // namespace

TEST_CASE("packed matrices are read where their rows are, and are written there") {
  TempDir dir;
  const bool is_transposed = GENERATE(false, true);
  const std::int64_t columns = GENERATE(1, kColumns);
  const std::int64_t rows = kMatrices * kRows;
  const Shape parameter = columns == 1 ? Shape{rows} : Shape{rows, columns};
  if (columns == 1 && is_transposed) return;
  const Shape in_file = columns == 1    ? Shape{kMatrices, kRows}
                        : is_transposed ? Shape{kMatrices, columns, kRows}
                                        : Shape{kMatrices, kRows, columns};
  const std::string path = dir / "model.safetensors", bytes = numbered(rows * columns);
  write_file(path, {{"packed", DType::f32, in_file}}, bytes);
  WeightImport weights(path, map_of(is_transposed), {{"p", parameter}});
  check_blocks(weights, columns, [&](std::int64_t row, std::int64_t column) {
    return static_cast<float>(place_of(is_transposed, row, column, columns));
  });
  std::vector<float> all(static_cast<std::size_t>(rows * columns));
  weights.read("p", {0, rows, 0, columns}, all.data());
  Whole source(parameter, all);
  export_file(source, map_of(is_transposed), dir / "again.safetensors");
  CHECK(test::read_file(dir / "again.safetensors").ends_with(bytes));
  export_safetensors(source, map_of(is_transposed), dir.path() + "/.", {FileDType::f32, 1 << 20});
  CHECK(test::read_file(path).ends_with(bytes));
  CHECK_THAT(test::coded_message_of([&] {
               WeightImport(path, map_of(!is_transposed), {{"p", {rows, kHalf}}});
             }),
             Catch::Contains(is_transposed ? "not (3, 10, 5)" : "not (3, 5, 10)"));
}

TEST_CASE("MXFP4 is decoded to the bits of its definition, whatever part is read") {
  TempDir dir;
  const bool is_transposed = GENERATE(false, true);  // of files in numbers; blocks lie along rows
  const std::string path = quantized_file(dir, kBlocks, kScales);
  WeightImport weights(path, map_of(is_transposed), kParameters);
  const Quantized all = quantized();
  std::map<unsigned, int> codes;
  check_blocks(weights, kColumns, [&](std::int64_t row, std::int64_t column) {
    const std::int64_t at = place_of(false, row, column, kColumns);
    const unsigned byte = static_cast<unsigned char>(all.blocks[static_cast<std::size_t>(at / 2)]),
                   exponent = static_cast<unsigned char>(all.scales[static_cast<std::size_t>(at / 32)]),
                   code = at % 2 == 0 ? byte % 16 : byte / 16;
    ++codes[code];
    if (exponent == 255) return std::numeric_limits<float>::quiet_NaN();
    return static_cast<float>(std::ldexp(of_e2m1(code), static_cast<int>(exponent) - 127));
  });
  CHECK(codes.size() == 16);
}

TEST_CASE("MXFP4 that does not fit is refused") {
  TempDir dir;
  const auto refusal = [](const std::string& path) {
    return test::coded_message_of([&] { WeightImport(path, map_of(true), kParameters); });
  };
  CHECK(refusal(quantized_file(dir, kBlocks, kScales)).empty());
  CHECK_THAT(refusal(quantized_file(dir, kBlocks, {kMatrices * kRows, kColumns / 32})),
             Catch::Contains("packed_scales is U8 (30, 2), not U8 (3, 10, 2)"));
  CHECK_THAT(refusal(quantized_file(dir, kBlocks, kScales, FileDType::i8)),
             Catch::Contains("packed_scales is I8 (3, 10, 2), not U8 (3, 10, 2)"));
  CHECK_THAT(refusal(quantized_file(dir, {kMatrices, kRows, kColumns / 16, 8}, kScales)),
             Catch::Contains("packed_blocks is U8 (3, 10, 4, 8), not U8 (..., 16)"));
  CHECK_THAT(refusal(quantized_file(dir, {kMatrices, kRows / 2, 2 * kColumns / 32, 16}, {kMatrices, kRows / 2, 4})),
             Catch::Contains("packed_blocks is (3, 5, 128), not (3, 10, 64)"));
  const std::string path = dir / "model.safetensors";
  write_file(path, {{"packed_blocks", FileDType::u8, kBlocks}}, quantized().blocks);
  CHECK_THAT(refusal(path), Catch::Contains("packed_scales is missing, for packed_blocks in MXFP4"));
  const Quantized all = quantized();
  write_file(
      path,
      {{"packed_blocks", FileDType::u8, kBlocks}, {"packed_scales", FileDType::u8, kScales}, {"odd", DType::f32, {1}}},
      all.blocks + all.scales + "1234");
  CHECK_THAT(refusal(path), Catch::Contains("unknown odd"));
}

}  // namespace packed_weights_test
