#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/vec.h"

namespace zs::cpu::ZS_ISA {
namespace {

constexpr std::int64_t kColumns = 1024;  // columns summed together: long enough runs of memory, short enough for the first cache
constexpr std::int64_t kRowBlock = 32;   // rows summed before they join the total

template <class T>
void forward_row(const LayerNormForward& args, std::int64_t row) {
  const std::int64_t width = args.rows.width;
  const T* x = elements<const T>(args.x) + row * width;
  T* y = elements<T>(args.y) + row * width;
  const float count = static_cast<float>(width);
  const float mean = lane_sum(width, [=](std::int64_t i) { return to_float(x[i]); }) / count;
  const float variance = lane_sum(width, [=](std::int64_t i) { return (to_float(x[i]) - mean) * (to_float(x[i]) - mean); }) / count;
  const float rstd = 1.0f / __builtin_sqrtf(variance + args.eps);
  const float *gamma = args.gamma, *beta = args.beta;
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) y[i] = from_float<T>((to_float(x[i]) - mean) * rstd * gamma[i] + beta[i]);
  args.mean[row] = mean;
  args.rstd[row] = rstd;
}

/// With xhat = (x - mean) rstd and g = dy gamma: dx = rstd (g - mean(g) - xhat mean(g xhat)).
template <class T>
void backward_row(const LayerNormBackward& args, std::int64_t row) {
  const std::int64_t width = args.rows.width;
  const T *x = elements<const T>(args.x) + row * width, *dy = elements<const T>(args.dy) + row * width;
  T* dx = elements<T>(args.dx) + row * width;
  const float* gamma = args.gamma;
  const float mean = args.mean[row], rstd = args.rstd[row], count = static_cast<float>(width);
  const float mean_g = lane_sum(width, [=](std::int64_t i) { return to_float(dy[i]) * gamma[i]; }) / count;
  const float mean_gx =
      lane_sum(width, [=](std::int64_t i) { return to_float(dy[i]) * gamma[i] * ((to_float(x[i]) - mean) * rstd); }) / count;
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    const float xhat = (to_float(x[i]) - mean) * rstd;
    dx[i] = from_float<T>(rstd * (to_float(dy[i]) * gamma[i] - mean_g - xhat * mean_gx));
  }
}

struct ParameterSums {
  float *dgamma, *dbeta;
};

/// kRows rows from `row` on join the sums of columns [first, first + columns), in their order.
template <int kRows, class T>
void add_rows(const LayerNormBackward& args, ParameterSums sums, std::int64_t row, std::int64_t first, std::int64_t columns) {
  const std::int64_t width = args.rows.width;
  const T *x = elements<const T>(args.x) + row * width + first, *dy = elements<const T>(args.dy) + row * width + first;
  const float *mean = args.mean + row, *rstd = args.rstd + row;
#pragma omp simd
  for (std::int64_t c = 0; c < columns; ++c) {
    float dgamma = sums.dgamma[c], dbeta = sums.dbeta[c];
    for (int r = 0; r < kRows; ++r) {
      const float gradient = to_float(dy[r * width + c]);
      dgamma += gradient * ((to_float(x[r * width + c]) - mean[r]) * rstd[r]);
      dbeta += gradient;
    }
    sums.dgamma[c] = dgamma;
    sums.dbeta[c] = dbeta;
  }
}

template <class T>
void parameter_columns(const LayerNormBackward& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t c = begin; c < end; ++c) args.dgamma[c] = args.dbeta[c] = 0.0f;
  for (std::int64_t first = begin; first < end; first += kColumns) {
    const std::int64_t columns = min_of(kColumns, end - first);
    for (std::int64_t block = 0; block < args.rows.count; block += kRowBlock) {
      alignas(64) float part_gamma[kColumns], part_beta[kColumns];
      for (std::int64_t c = 0; c < columns; ++c) part_gamma[c] = part_beta[c] = 0.0f;
      const std::int64_t block_end = min_of(args.rows.count, block + kRowBlock);
      std::int64_t row = block;
      for (; row + 2 <= block_end; row += 2) add_rows<2, T>(args, {part_gamma, part_beta}, row, first, columns);
      for (; row < block_end; ++row) add_rows<1, T>(args, {part_gamma, part_beta}, row, first, columns);
      for (std::int64_t c = 0; c < columns; ++c) {
        args.dgamma[first + c] += part_gamma[c];
        args.dbeta[first + c] += part_beta[c];
      }
    }
  }
}

}  // namespace

void layer_norm_forward(int threads, const LayerNormForward& args) {
  with_type(args.x, [&](auto tag) {
    using T = decltype(tag);
    parallel_ranges(split_rows(threads, args.rows.count, args.rows.width), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) forward_row<T>(args, row);
    });
  });
}

void layer_norm_backward(int threads, const LayerNormBackward& args) {
  with_type(args.x, [&](auto tag) {
    using T = decltype(tag);
    // Columns first: dx may be dy, which they read.
    const Split columns{threads, args.rows.width, max_of(1, 16384 / max_of(1, args.rows.count)), 16};
    parallel_ranges(columns, [&](std::int64_t begin, std::int64_t end) { parameter_columns<T>(args, begin, end); });
    parallel_ranges(split_rows(threads, args.rows.count, args.rows.width), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) backward_row<T>(args, row);
    });
  });
}

}  // namespace zs::cpu::ZS_ISA
