#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/stream_store.h"
#include "kernels/cpu/vec_math.h"

namespace zs::cpu::ZS_ISA {
namespace {

float row_max(const float* x, std::int64_t n) {
  constexpr int kCount = 4 * kLanes;
  const std::int64_t whole = n / kCount * kCount;
  float largest = x[0];
  if (whole > 0) {
    LanesOf<kCount> lanes;
    for (Vec& v : lanes.v) v += largest;
    for (std::int64_t i = 0; i < whole; i += kCount) lanes.max(x + i);
    largest = fold_max(lanes);
  }
  for (std::int64_t i = whole; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

/// A vocabulary is long: the sums of its chunks are carried in f64.
double sum_exp(const float* x, std::int64_t n, float largest) {
  constexpr std::int64_t kChunk = 1024;
  double total = 0;
  for (std::int64_t begin = 0; begin < n; begin += kChunk) {
    const float* chunk = x + begin;
    total += static_cast<double>(lane_sum<Order::in_line>(min_of(kChunk, n - begin), [=](std::int64_t i, auto part) {
      return each([](Vec v) { return exp_of(v); }, load(chunk + i, part) - largest);
    }));
  }
  return total;
}

template <class T>
void backward_row(const CrossEntropy& args, std::int64_t row, bool is_streamed) {
  const float* x = args.logits + row * args.stride;
  T* dx = elements<T>(args.dlogits) + row * args.stride;
  const float lse = args.lse[row], factor = args.factor;
  const std::int64_t target = args.targets[row];
  const float at_target = (exp_of(x[target] - lse) - 1.0f) * factor;
  store_range<Order::in_line>(dx, 0, args.classes, is_streamed, [=](std::int64_t c, auto part) {
    fetch_ahead(x + c, part);
    return each([](Vec v) { return exp_of(v); }, load(x + c, part) - lse) * factor;
  });
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
    const Data logits{const_cast<float*>(args.logits), false};
    const bool is_streamed = streams<T>(args.dlogits, args.rows * args.stride, logits, logits);
    parallel_ranges(split_rows(threads, args.rows, args.stride), [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) backward_row<T>(args, row, is_streamed);
      end_streaming(is_streamed);
    });
  });
}

}  // namespace zs::cpu::ZS_ISA
