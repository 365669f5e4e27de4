#include "runtime/base/nf4_blocks.h"

#include <cmath>
#include <fstream>
#include <limits>

#include "tests/kernels/testing.h"

namespace zs::test::nf4_blocks_test {
namespace {

const KernelTable& k() { return kernels_under_test(); }

/// What bitsandbytes made (tests/data/nf4/make_blocks.py).
std::vector<std::byte> made(const char* file) {
  std::ifstream in(fmt::format("{}/tests/data/nf4/{}", ZSHARD_SOURCE_ROOT, file), std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
  REQUIRE(!bytes.empty());
  const auto* const begin = reinterpret_cast<const std::byte*>(bytes.data());
  return {begin, begin + bytes.size()};
}

/// Packed elements, poisoned; a multiple of 16 is where they begin.
class Packed {
 public:
  explicit Packed(std::int64_t bytes)
      : bytes_(bytes), words_(static_cast<std::size_t>(bytes / 8 + 2), 0xaaaaaaaaaaaaaaaa) {}
  Buffer buffer() { return {begin(), bytes_, DType::u8, device_under_test()}; }
  std::byte* begin() {
    auto* const first = reinterpret_cast<std::byte*>(words_.data());
    return first + (16 - reinterpret_cast<std::uintptr_t>(first) % 16) % 16;
  }

 private:
  std::int64_t bytes_;
  TestVector<std::uint64_t> words_;
};

bool are_same(const std::byte* a, const std::vector<std::byte>& b) { return std::memcmp(a, b.data(), b.size()) == 0; }

}  // namespace

TEST_CASE("NF4 blocks have the codes, magnitudes and values of bitsandbytes, byte for byte") {
  const std::vector<std::byte> numbers = made("numbers.f32"), codes = made("codes.bin"), most = made("absmax.f32");
  const auto n = static_cast<std::int64_t>(numbers.size() / sizeof(float));
  std::vector<float> elements(static_cast<std::size_t>(n));
  std::memcpy(elements.data(), numbers.data(), numbers.size());
  Packed packed(nf4_bytes(n));
  pack_nf4(packed.begin(), elements.data(), n);
  REQUIRE(codes.size() == static_cast<std::size_t>(n / 2));
  REQUIRE(most.size() == static_cast<std::size_t>(4 * nf4_blocks(n)));
  CHECK(are_same(packed.begin(), codes));
  CHECK(are_same(packed.begin() + nf4_scales_at(n), most));

  ExecContext ctx = make_context();
  Values in_f32 = Values::poison(DType::f32, n), in_bf16 = Values::poison(DType::bf16, n);
  k().unpack_nf4(ctx, in_f32.buffer(), packed.buffer(), 1);
  k().unpack_nf4(ctx, in_bf16.buffer(), packed.buffer(), 1);
  const std::vector<std::byte> f32 = made("decoded.f32"), bf16 = made("decoded.bf16");
  CHECK(are_same(static_cast<const std::byte*>(in_f32.buffer().data), f32));
  // Its processor's instruction rounds what is subnormal in f32 to zero.
  for (std::int64_t i = 0; i < n; ++i) {
    if (std::fpclassify(in_f32.at<float>(i)) == FP_SUBNORMAL) continue;
    REQUIRE(std::memcmp(bf16.data() + 2 * i, static_cast<const std::byte*>(in_bf16.buffer().data) + 2 * i, 2) == 0);
  }
}

TEST_CASE("NF4 is unpacked as the definition has it, to any address and in slices of any length") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const std::int64_t n = GENERATE(0, 1, 2, 15, 16, 17, 63, 64, 65, 1003, 4096), skipped = GENERATE(0, 1);
  const int slices = GENERATE(1, 3);
  CAPTURE(n, skipped, slices);
  std::vector<float> elements(static_cast<std::size_t>(n));
  Packed packed(slices * nf4_bytes(n));
  const CounterRng rng(3);
  for (int s = 0; s < slices; ++s) {
    for (std::int64_t i = 0; i < n; ++i)
      elements[static_cast<std::size_t>(i)] = static_cast<float>(
          std::ldexp(rng.normal(static_cast<std::uint64_t>(s * n + i)), static_cast<int>(i / 64) % 40 - 20));
    for (const auto& [at, value] : {std::pair<std::int64_t, float>{70, std::numeric_limits<float>::infinity()},
                                    {200, std::numeric_limits<float>::quiet_NaN()}})
      if (at < n) elements[static_cast<std::size_t>(at)] = value;
    pack_nf4(packed.begin() + s * nf4_bytes(n), elements.data(), n);
  }
  Values decoded = Values::poison(dtype, slices * n + skipped), wanted = decoded;
  ExecContext ctx = make_context();
  k().unpack_nf4(ctx, decoded.buffer().slice(skipped, slices * n), packed.buffer(), slices);
  Buffer on_host = wanted.buffer().slice(skipped, slices * n);
  on_host.device = DeviceKind::cpu;
  unpack_nf4(on_host, packed.begin(), slices);
  CHECK(decoded.same_bytes(wanted));
  for (std::int64_t i = 0; i < n; ++i)
    REQUIRE(std::isnan(wanted[skipped + i]) == ((n > 70 && i / 64 == 1) || (n > 200 && i / 64 == 3)));
}

TEST_CASE("what is packed as NF4 is packed from its decoded values in the same bytes") {
  const std::int64_t n = 1024;
  std::vector<float> elements(n);
  const CounterRng rng(5);
  for (std::int64_t i = 0; i < n; ++i)
    elements[static_cast<std::size_t>(i)] = static_cast<float>(rng.normal(static_cast<std::uint64_t>(i)));
  std::vector<std::byte> packed(static_cast<std::size_t>(nf4_bytes(n))), again = packed;
  pack_nf4(packed.data(), elements.data(), n);
  unpack_nf4({elements.data(), n, DType::f32, DeviceKind::cpu}, packed.data());
  pack_nf4(again.data(), elements.data(), n);
  CHECK(packed == again);
}

}  // namespace zs::test::nf4_blocks_test
