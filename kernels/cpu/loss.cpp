#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/vec_math.h"

namespace zs::cpu::ZS_ISA {
namespace {

float row_max(const float* x, std::int64_t n) {
  const std::int64_t whole = n / kLanes * kLanes;
  float largest = x[0];
  if (whole > 0) {
    Lanes lanes;
    for (Vec& v : lanes.v) v += largest;
    for (std::int64_t i = 0; i < whole; i += kLanes) lanes.max(x + i);
    largest = fold_max(lanes);
  }
  for (std::int64_t i = whole; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

/// A vocabulary is long: the sums of its chunks are carried in f64.
double sum_exp(const float* x, std::int64_t n, float largest) {
  alignas(64) float chunk[kChunk];
  double total = 0;
  for (std::int64_t begin = 0; begin < n; begin += kChunk) {
    const int length = static_cast<int>(min_of(kChunk, n - begin));
    const int padded = fill_chunk(chunk, begin, length, 0.0f, [=](std::int64_t i) { return exp_of(x[i] - largest); });
    Lanes part;
    for (int i = 0; i < padded; i += kLanes) part.add(chunk + i);
    total += fold_sum(part);
  }
  return total;
}

template <class T>
void backward_row(const CrossEntropy& args, std::int64_t row, float factor) {
  const float* x = args.logits + row * args.stride;
  T* dx = elements<T>(args.dlogits) + row * args.stride;
  const float lse = args.lse[row];
  const std::int64_t target = args.targets[row];
  const float at_target = (exp_of(x[target] - lse) - 1.0f) * factor;
#pragma omp simd
  for (std::int64_t c = 0; c < args.classes; ++c) dx[c] = from_float<T>(exp_of(x[c] - lse) * factor);
  dx[target] = from_float<T>(at_target);
  for (std::int64_t c = args.classes; c < args.stride; ++c) dx[c] = T{};
}

}  // namespace

void cross_entropy_forward(int threads, const CrossEntropy& args) {
  parallel_ranges(split_rows(threads, args.rows, args.classes), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const float* x = args.logits + row * args.stride;
      const float largest = row_max(x, args.classes);
      const double lse = static_cast<double>(largest) + __builtin_log(sum_exp(x, args.classes, largest));
      args.lse[row] = static_cast<float>(lse);
      args.losses[row] = static_cast<float>(lse - static_cast<double>(x[args.targets[row]]));
    }
  });
}

void cross_entropy_backward(int threads, const CrossEntropy& args) {
  with_type(args.dlogits, [&](auto tag) {
    using T = decltype(tag);
    parallel_ranges(split_rows(threads, args.rows, args.stride), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) backward_row<T>(args, row, args.factor);
    });
  });
}

}  // namespace zs::cpu::ZS_ISA
