#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "runtime/tensor/tensor.h"

namespace zs {

// Tensors made of numbers, and the numbers of tensors. None of these has a gradient.

/// The only element of x, f32, bf16 or i32. Waits for the compute stream.
double item(const Tensor& x);
/// Elements of an i32 tensor. Waits for the compute stream.
std::vector<std::int32_t> to_host_i32(const Tensor& x);
/// "f32 (2, 3)" and below it the elements, of f32, bf16 or i32, a line for each row; of a long dim the first and last
/// three. Waits for the compute stream.
std::string text_of(const Tensor& x);
/// Writes text_of(x) to standard output, behind a name.
void print(const Tensor& x, const std::string& name = {});

/// Elements of one value; i32: an integer of at most 2^24.
Tensor full(Context& context, const Shape& shape, float value, DType dtype = DType::f32);
/// (count) i32: first, first + step, first + 2 step ...
Tensor arange(Context& context, std::int64_t count, std::int64_t first = 0, std::int64_t step = 1);
/// (..., classes): 1 at each id, i32 (...), else 0. An id that is no class has no 1.
Tensor one_hot(const Tensor& ids, std::int64_t classes, DType dtype = DType::f32);

/// Key of random numbers, made of what they are for: random_key({seed, step, rank}). Other numbers, or another order of
/// them, give another key.
std::uint64_t random_key(std::initializer_list<std::int64_t> numbers);
/// Normal numbers. Those of one key and element are the same on every rank, and in a recomputed function. Drawn on the
/// host when the call is made, as are the next three.
Tensor random_normal(Context& context, const Shape& shape, std::uint64_t key, float mean = 0, float deviation = 1);
/// Uniform numbers, low <= x < high.
Tensor random_uniform(Context& context, const Shape& shape, std::uint64_t key, float low = 0, float high = 1);
/// i32, low <= x < high.
Tensor random_integers(Context& context, const Shape& shape, std::uint64_t key, std::int32_t low, std::int32_t high);
/// (count) i32: 0 to count - 1 in a random order.
Tensor random_order(Context& context, std::int64_t count, std::uint64_t key);

}  // namespace zs
