#include "runtime/base/int8_blocks.h"

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/fp8.h"
#include "tests/kernels/testing.h"

namespace zs::test::int8_blocks_test {
namespace {

const KernelTable& k() { return kernels_under_test(); }

/// Packed elements of several parts, poisoned; a multiple of 16 is where they begin.
class Packed {
 public:
  Packed(std::int64_t elems, int parts)
      : bytes_(parts * packed_bytes(elems)), words_(static_cast<std::size_t>(bytes_ / 8 + 2), 0xaaaaaaaaaaaaaaaa) {}
  Buffer buffer() { return {begin(), bytes_, DType::u8, device_under_test()}; }
  std::byte* begin() {
    auto* const first = reinterpret_cast<std::byte*>(words_.data());
    return first + (16 - reinterpret_cast<std::uintptr_t>(first) % 16) % 16;
  }

 private:
  std::int64_t bytes_;
  TestVector<std::uint64_t> words_;
};

/// As the definition wants it: the host's memory.
Buffer on_host(Values& values) {
  Buffer buffer = values.buffer();
  buffer.device = DeviceKind::cpu;
  return buffer;
}

/// Of all sizes, so that every block has another scale; with blocks of zeros, of nearly nothing, and with what is not
/// finite.
Values many_sizes(DType dtype, std::int64_t elems, std::uint64_t seed) {
  Values values = Values::random(dtype, elems, seed);
  for (std::int64_t i = 0; i < elems; ++i) {
    const std::int64_t block = i / kInt8BlockElems;
    const double size = block % 7 == 3 ? 0.0 : std::ldexp(1.0, static_cast<int>(block * 5 % 60) - 30);
    values.set(i, block % 11 == 5 ? 1e-38 * values[i] : values[i] * size);
  }
  const double inf = std::numeric_limits<double>::infinity();
  const auto put = [&](std::int64_t i, double value) {
    if (i < elems) values.set(i, value);
  };
  put(258, std::nan(""));
  put(600, inf);
  put(1024 + 255, -inf);
  put(2048, 3.3e38);  // nearly all there is
  return values;
}

}  // namespace

TEST_CASE("elements are packed as the definition has it, from any address and in slices of any length") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const std::int64_t n = GENERATE(0, 1, 3, 15, 16, 17, 255, 256, 257, 1003, 4096, 5000), skipped = GENERATE(0, 1);
  const int slices = GENERATE(1, 3);
  CAPTURE(n, skipped, slices);
  Values values = many_sizes(dtype, slices * n + skipped, 5), decoded = Values::poison(dtype, slices * n + skipped),
         wanted = decoded;
  Packed packed(n, slices), expected(n, slices);
  ExecContext ctx = make_context();
  k().pack_int8(ctx, packed.buffer(), values.buffer().slice(skipped, slices * n), slices);
  k().unpack_int8(ctx, decoded.buffer().slice(skipped, slices * n), packed.buffer(), slices);
  for (int s = 0; s < slices; ++s) {
    const std::int64_t at = s * packed_bytes(n);
    pack_int8(expected.begin() + at, on_host(values).slice(skipped + s * n, n));
    unpack_int8(on_host(wanted).slice(skipped + s * n, n), expected.begin() + at);
    REQUIRE(std::memcmp(packed.begin() + at, expected.begin() + at, static_cast<std::size_t>(n)) == 0);
    REQUIRE(std::memcmp(packed.begin() + at + int8_scales_at(n), expected.begin() + at + int8_scales_at(n),
                        static_cast<std::size_t>(int8_blocks(n) * 4)) == 0);
  }
  CHECK(decoded.same_bytes(wanted));
}

TEST_CASE("packed parts are added up as the definition has it") {
  const DType from = GENERATE(DType::f32, DType::bf16), into = GENERATE(DType::f32, DType::bf16);
  const std::int64_t n = GENERATE(1, 17, 256, 1003, 5000), skipped = GENERATE(0, 1);
  const int parts = GENERATE(1, 2, 5);
  const bool accumulate = GENERATE(false, true);
  CAPTURE(n, skipped, parts, accumulate);
  Packed packed(n, parts);
  for (int p = 0; p < parts; ++p) {
    Values part = many_sizes(from, n, static_cast<std::uint64_t>(p));
    pack_int8(packed.begin() + p * packed_bytes(n), on_host(part));
  }
  Values out = Values::random(into, n + skipped, 9);
  for (const auto& [i, value] :
       {std::pair(0, std::copysign(std::nan(""), -1.0)), {2, -std::numeric_limits<double>::infinity()}})
    if (i < n) out.set(skipped + i, value);
  Values wanted = out;
  ExecContext ctx = make_context();
  k().reduce_int8(ctx, out.buffer().slice(skipped, n), packed.buffer(), parts, accumulate);
  reduce_int8(on_host(wanted).slice(skipped, n), packed.begin(), parts, accumulate);
  CHECK(out.same_bytes(wanted));
}

TEST_CASE("e4m3 is the nearest of its numbers, and the even one of two") {
  // By the definition: sign, exponent of 4 bits with a bias of 7, mantissa of 3; without infinities, one NaN.
  std::vector<double> values;
  for (std::uint32_t code = 0; code < 0x7f; ++code) {
    const int exponent = static_cast<int>(code >> 3), mantissa = static_cast<int>(code & 7);
    values.push_back(exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10));
    REQUIRE(std::bit_cast<float>(bits_of_e4m3(code)) == static_cast<float>(values.back()));
    REQUIRE(std::bit_cast<float>(bits_of_e4m3(code | 0x80)) == static_cast<float>(-values.back()));
  }
  CHECK(values.back() == 448);
  CHECK(std::isnan(std::bit_cast<float>(bits_of_e4m3(0x7f))));
  const auto check = [&](float x) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < values.size(); ++i) {
      const double nearer = std::fabs(values[i] - double{x}) - std::fabs(values[best] - double{x});
      if (nearer < 0 || (nearer == 0 && i % 2 == 0)) best = i;
    }
    REQUIRE(e4m3_of(std::bit_cast<std::uint32_t>(x)) == best);
    REQUIRE(e4m3_of(std::bit_cast<std::uint32_t>(-x)) == (best | 0x80));
  };
  for (std::size_t i = 0; i + 1 < values.size(); ++i) {
    const auto middle = static_cast<float>((values[i] + values[i + 1]) / 2);
    for (const float x :
         {static_cast<float>(values[i]), middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 500.0f)})
      check(x);
  }
  for (const float x : {448.0f, 450.0f, 3e38f, 1e-30f}) check(x);
  CHECK(e4m3_of(std::bit_cast<std::uint32_t>(std::numeric_limits<float>::infinity())) == 0x7e);
  CHECK(e4m3_of(std::bit_cast<std::uint32_t>(std::nanf(""))) == 0x7f);
}

TEST_CASE("elements travel as fp8 within their bounds, blocks that are not finite as NaN") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const std::int64_t n = GENERATE(0, 1, 17, 256, 1003, 5000), skipped = GENERATE(0, 1);
  const int slices = GENERATE(1, 3);
  CAPTURE(n, skipped, slices);
  Values values = many_sizes(dtype, slices * n + skipped, 5), decoded = Values::poison(dtype, slices * n + skipped);
  Packed packed(n, slices);
  ExecContext ctx = make_context();
  k().pack_fp8(ctx, packed.buffer(), values.buffer().slice(skipped, slices * n), slices);
  k().unpack_fp8(ctx, decoded.buffer().slice(skipped, slices * n), packed.buffer(), slices);
  for (int s = 0; s < slices; ++s) {
    for (std::int64_t at = 0; at < n; at += kInt8BlockElems) {
      const std::int64_t begin = skipped + s * n + at, end = begin + std::min(kInt8BlockElems, n - at);
      double most = 0;
      bool is_finite = true;
      for (std::int64_t i = begin; i < end; ++i) {
        is_finite = is_finite && std::isfinite(values[i]);
        most = std::max(most, std::fabs(values[i]));
      }
      for (std::int64_t i = begin; i < end; ++i) {
        if (!is_finite) {
          REQUIRE(std::isnan(decoded[i]));
          continue;
        }
        // bf16 rounds once more, by 1/256 at most; below 1e-35 a block is zero.
        const double bound = std::max(std::fabs(values[i]) * (1.0 / 16 + 1.0 / 128), most / 440'000) + 1e-35;
        REQUIRE(std::fabs(decoded[i] - values[i]) <= bound);
      }
    }
  }
}

TEST_CASE("packed elements of another size, dtype or address are refused") {
  ExecContext ctx = make_context();
  Values values = Values::random(DType::f32, 300, 1), whole(DType::i32, 300);
  Packed packed(300, 2);
  const Buffer one = packed.buffer().slice(0, packed_bytes(300));
  CHECK_THROWS_AS(k().pack_int8(ctx, packed.buffer(), values.buffer(), 1), Error);
  CHECK_THROWS_AS(k().pack_int8(ctx, one, whole.buffer(), 1), Error);
  CHECK_THROWS_AS(k().unpack_int8(ctx, values.buffer().slice(0, 299), one, 2), Error);
  CHECK_THROWS_AS(k().reduce_int8(ctx, values.buffer(), one, 2, false), Error);
  CHECK_THROWS_AS(k().pack_int8(ctx, packed.buffer().slice(1, packed_bytes(300)), values.buffer(), 1), Error);
  CHECK_NOTHROW(k().pack_int8(ctx, one, values.buffer(), 1));
}

}  // namespace zs::test::int8_blocks_test
