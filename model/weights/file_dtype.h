#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "runtime/base/dtype.h"

namespace zs {

/// The dtypes of safetensors files. zshard reads and writes parameters as f32, f16 and bf16.
enum class FileDType : std::uint8_t {
  boolean,
  f4,
  f6_e2m3,
  f6_e3m2,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64,
};

/// "F32", "BF16" ...
std::string_view name_of(FileDType dtype);
std::int64_t bits_of(FileDType dtype);
/// Dtype of an exact name.
std::optional<FileDType> find_file_dtype(std::string_view name);
/// Dtype by which a file calls a tensor's.
FileDType file_dtype(DType dtype);

/// True if parameters may be stored so.
constexpr bool is_parameter_dtype(FileDType dtype) {
  return dtype == FileDType::f32 || dtype == FileDType::f16 || dtype == FileDType::bf16;
}
/// `count` values of f32, f16 or bf16, at any alignment, as f32; and back, to nearest even. A NaN stays one.
void to_f32(FileDType dtype, const void* in, float* out, std::int64_t count);
void from_f32(FileDType dtype, const float* in, void* out, std::int64_t count);
/// The first of these numbers that is finite and would not be as `dtype`: one of 65520 or more as f16.
std::optional<float> first_overflow(FileDType dtype, const float* values, std::int64_t count);

}  // namespace zs
