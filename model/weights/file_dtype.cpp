#include "model/weights/file_dtype.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

namespace zs {
namespace {

struct Row {
  std::string_view name;
  std::int64_t bits;
};
/// Names and bits in the order of the enumeration.
constexpr std::array kRows = {
    Row{"BOOL", 8},        Row{"F4", 4},      Row{"F6_E2M3", 6}, Row{"F6_E3M2", 6}, Row{"U8", 8},
    Row{"I8", 8},          Row{"F8_E5M2", 8}, Row{"F8_E4M3", 8}, Row{"F8_E8M0", 8}, Row{"F8_E4M3FNUZ", 8},
    Row{"F8_E5M2FNUZ", 8}, Row{"I16", 16},    Row{"U16", 16},    Row{"F16", 16},    Row{"BF16", 16},
    Row{"I32", 32},        Row{"U32", 32},    Row{"F32", 32},    Row{"C64", 64},    Row{"F64", 64},
    Row{"I64", 64},        Row{"U64", 64},
};
static_assert(kRows.size() == static_cast<std::size_t>(FileDType::u64) + 1);

constexpr std::uint32_t kF32Infinity = 0x7f800000u;

float from_f16(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16, exponent = (bits >> 10) & 0x1fu, fraction = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | kF32Infinity | (fraction << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;  // exact
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
}

std::uint16_t to_f16(float value) {
  const auto word = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((word >> 16) & 0x8000u);
  const std::uint32_t magnitude = word & 0x7fffffffu;
  const auto with_sign = [&](std::uint32_t bits) { return static_cast<std::uint16_t>(sign | bits); };
  if (magnitude > kF32Infinity) return with_sign(0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return with_sign(0x7c00u);  // 65520 and more round to infinity
  if (magnitude < 0x38800000u) {  // below the normal numbers: the sum rounds at 2^-24, to nearest even
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return with_sign(std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u);
  }
  return with_sign((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13);
}

template <class Stored, class Convert>
void widen(const void* in, float* out, std::int64_t count, const Convert& convert) {
  const auto* bytes = static_cast<const char*>(in);
  for (std::int64_t i = 0; i < count; ++i) {
    Stored stored;
    std::memcpy(&stored, bytes + i * std::int64_t{sizeof stored}, sizeof stored);
    out[i] = convert(stored);
  }
}

template <class Convert>
void narrow(const float* in, void* out, std::int64_t count, const Convert& convert) {
  auto* bytes = static_cast<char*>(out);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint16_t stored = convert(in[i]);
    std::memcpy(bytes + i * std::int64_t{sizeof stored}, &stored, sizeof stored);
  }
}

}  // namespace

std::string_view name_of(FileDType dtype) { return kRows[static_cast<std::size_t>(dtype)].name; }

std::int64_t bits_of(FileDType dtype) { return kRows[static_cast<std::size_t>(dtype)].bits; }

std::optional<FileDType> find_file_dtype(std::string_view name) {
  for (std::size_t i = 0; i < kRows.size(); ++i)
    if (kRows[i].name == name) return static_cast<FileDType>(i);
  return std::nullopt;
}

FileDType file_dtype(DType dtype) {
  switch (dtype) {
    case DType::f32: return FileDType::f32;
    case DType::bf16: return FileDType::bf16;
    case DType::f64: return FileDType::f64;
    case DType::i32: return FileDType::i32;
    case DType::i64: return FileDType::i64;
    case DType::u16: return FileDType::u16;
    case DType::u8: return FileDType::u8;
  }
  ZS_CHECK(false, "dtype {}", static_cast<int>(dtype));
}

void to_f32(FileDType dtype, const void* in, float* out, std::int64_t count) {
  ZS_CHECK(is_parameter_dtype(dtype), "{}", name_of(dtype));
  if (dtype == FileDType::f32) {
    if (count > 0) std::memcpy(out, in, static_cast<std::size_t>(count) * sizeof(float));
  } else if (dtype == FileDType::f16) {
    widen<std::uint16_t>(in, out, count, from_f16);
  } else {
    widen<BFloat16>(in, out, count, [](BFloat16 value) { return static_cast<float>(value); });
  }
}

void from_f32(FileDType dtype, const float* in, void* out, std::int64_t count) {
  ZS_CHECK(is_parameter_dtype(dtype), "{}", name_of(dtype));
  if (dtype == FileDType::f32) {
    if (count > 0) std::memcpy(out, in, static_cast<std::size_t>(count) * sizeof(float));
  } else if (dtype == FileDType::f16) {
    narrow(in, out, count, to_f16);
  } else {
    narrow(in, out, count, [](float value) { return BFloat16(value).bits; });
  }
}

std::optional<float> first_overflow(FileDType dtype, const float* values, std::int64_t count) {
  if (dtype == FileDType::f32) return std::nullopt;
  const float first = dtype == FileDType::f16 ? 65520.0f : 0x1.ffp127f;  // the least that is rounded to infinity
  for (std::int64_t i = 0; i < count; ++i)
    if (std::isfinite(values[i]) && std::fabs(values[i]) >= first) return values[i];
  return std::nullopt;
}

}  // namespace zs
