#include "runtime/base/int8_blocks.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/comm/arrays.h"

namespace comm_dtype_test {

using namespace zs;

namespace {

std::vector<float> through_the_wire(std::vector<float> values) {
  const auto elems = static_cast<std::int64_t>(values.size());
  const Buffer buffer{values.data(), elems, DType::f32, DeviceKind::cpu};
  std::vector<std::byte> packed(static_cast<std::size_t>(packed_bytes(elems)));
  pack_int8(packed.data(), buffer);
  unpack_int8(buffer, packed.data());
  return values;
}

}  // namespace

TEST_CASE("packed elements take a byte each and 4 for each block, in lines of 64") {
  CHECK(packed_bytes(0) == 0);
  CHECK(packed_bytes(1) == 64);
  CHECK(packed_bytes(60) == 64);
  CHECK(packed_bytes(61) == 128);
  CHECK(packed_bytes(256) == 320);
  CHECK(packed_bytes(257) == 320);
  CHECK(packed_bytes(7'087'872) == 7'198'656);  // + 4 x 27,687, rounded up
}

TEST_CASE("a decoded element is within 1/254 of its block's largest magnitude") {
  std::vector<float> values;
  for (std::int64_t i = 0; i < 5000; ++i)
    values.push_back(test::real(3, i) * std::ldexp(1.0f, static_cast<int>(i / 256) * 4 - 40));
  const std::vector<float> decoded = through_the_wire(values);
  int differing = 0;
  for (std::size_t begin = 0; begin < values.size(); begin += kInt8BlockElems) {
    const std::size_t end = std::min(begin + kInt8BlockElems, values.size());
    float most = 0;
    for (std::size_t i = begin; i < end; ++i) most = std::max(most, std::fabs(values[i]));
    // f32 itself: the scale, its inverse and the products are each rounded by 2^-24 of at most the largest magnitude.
    const float bound = most / 254 + 4 * std::ldexp(most, -24);
    for (std::size_t i = begin; i < end; ++i) {
      if (std::fabs(decoded[i] - values[i]) > bound)
        FAIL("element " << i << ": " << values[i] << " became " << decoded[i] << ", bound " << bound);
      differing += decoded[i] != values[i] ? 1 : 0;
    }
  }
  CHECK(differing > 4000);
}

TEST_CASE("zeros stay zero, tiny blocks become zero, and a block that is not finite becomes NaN") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const float value : through_the_wire(std::vector<float>(300, 0.0f))) CHECK(value == 0);
  for (const float value : through_the_wire(std::vector<float>(3, 1e-40f))) CHECK(value == 0);
  for (const float bad : {inf, -inf, nan}) {
    std::vector<float> values(600, 1.0f);
    values[300] = bad;
    const std::vector<float> decoded = through_the_wire(values);
    CHECK(decoded[255] == Approx(1));
    CHECK(std::isnan(decoded[256]));
    CHECK(std::isnan(decoded[511]));
    CHECK(decoded[512] == Approx(1));
  }
}

}  // namespace comm_dtype_test
