#pragma once

#include <cstdint>
#include <string>

namespace zs {

/// Types of a GGUF file's tensors.
enum class GgufDType : std::uint8_t { f32, f16, bf16, q8_0, q6_k, q4_k };

/// Number by which a file calls it (ggml's types).
std::uint32_t number_of(GgufDType dtype);
/// Elements that share scales: rows are a multiple of them. 1 where each stands for itself.
std::int64_t block_elems(GgufDType dtype);
/// Bytes of `count` elements, a multiple of block_elems().
std::int64_t stored_bytes(GgufDType dtype, std::int64_t count);

/// Writes `count` numbers, a multiple of block_elems(), as a file holds them, in stored_bytes() bytes. Numbers in
/// blocks are those of ggml's reference quantizer without an importance matrix: q8_0 is 32 numbers of 8 bits and their
/// scale; q6_K sixteen groups of 16, each with a scale of 8 bits fitted to their squares; q4_K eight groups of 32, each
/// with a scale and a lowest number of 6 bits, fitted by least squares weighted by magnitude. Error(model), naming
/// `tensor`, where a number or a scale would become infinite.
void store_numbers(GgufDType dtype, const float* values, std::int64_t count, char* out, const std::string& tensor);

}  // namespace zs
