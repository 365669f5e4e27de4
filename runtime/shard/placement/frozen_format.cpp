#include "runtime/shard/placement/frozen_format.h"

#include <cstring>
#include <vector>

#include "runtime/base/int8_blocks.h"
#include "runtime/base/nf4_blocks.h"
#include "runtime/base/random.h"
#include "runtime/base/usage_error.h"

namespace zs {
namespace {

void encode_int8(std::byte* encoded, const float* elements, std::int64_t elems) {
  std::memset(encoded, 0, static_cast<std::size_t>(packed_bytes(elems)));  // every byte that travels is defined
  pack_int8(encoded, {const_cast<float*>(elements), elems, DType::f32, DeviceKind::cpu});
}

}  // namespace

void FrozenFormat::round(float* elements, std::int64_t elems) const {
  std::vector<std::byte> encoded(static_cast<std::size_t>(bytes(elems)));
  encode(encoded.data(), elements, elems);
  decode_on_host({elements, elems, DType::f32, DeviceKind::cpu}, encoded.data(), 1);
}

std::uint64_t FrozenFormat::fingerprint() const { return hash_name(name) | 1; }

const FrozenFormat* frozen_int8() {
  static const FrozenFormat format{"int8",      kInt8BlockElems, packed_bytes,
                                   encode_int8, unpack_int8,     &KernelTable::unpack_int8};
  return &format;
}

const FrozenFormat* frozen_nf4() {
  static const FrozenFormat format{"nf4", kNf4BlockElems, nf4_bytes, pack_nf4, unpack_nf4, &KernelTable::unpack_nf4};
  return &format;
}

const FrozenFormat* frozen_format_named(std::string_view name) {
  if (name == "none") return nullptr;
  if (name == "int8") return frozen_int8();
  ZS_REQUIRE(name == "nf4", "no format of frozen weights is called {}: there are none, int8 and nf4", name);
  return frozen_nf4();
}

}  // namespace zs
