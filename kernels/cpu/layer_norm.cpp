#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/stream_store.h"

namespace zs::cpu::ZS_ISA {
namespace {

template <class T>
void forward_row(const LayerNormForward& args, std::int64_t row, bool is_streamed) {
  const std::int64_t width = args.rows.width;
  const T* x = elements<const T>(args.x) + row * width;
  const float count = static_cast<float>(width);
  const float mean = lane_sum(width, [=](std::int64_t i, auto part) { return load(x + i, part); }) / count;
  const float variance = lane_sum(width,
                                  [=](std::int64_t i, auto part) {
                                    const auto d = load(x + i, part) - mean;
                                    return d * d;
                                  }) /
                         count;
  const float rstd = 1.0f / __builtin_sqrtf(variance + args.eps);
  const float *gamma = args.gamma, *beta = args.beta;
  store_range(elements<T>(args.y) + row * width, 0, width, is_streamed,
              [=](std::int64_t i, auto part) { return (load(x + i, part) - mean) * rstd * load(gamma + i, part) + load(beta + i, part); });
  args.mean[row] = mean;
  args.rstd[row] = rstd;
}

/// kRows rows from `row` on, and where a block of rows gathers its sums.
template <int kRows, class T>
struct RowGroup {
  const T *x, *dy;
  std::int64_t width;
  const float *mean, *rstd, *gamma;
  float *dgamma, *dbeta;

  /// Adds columns i .. to dgamma and dbeta, and g = dy gamma and g xhat of each row there to vector k of its sums.
  template <class P>
  void visit(std::int64_t i, P part, Lanes* g_sum, Lanes* gx_sum, std::int64_t k) const {
    const Vec gain = load(gamma + i, part);
    Vec gamma_sum = load(dgamma + i, part), beta_sum = load(dbeta + i, part);
    for (int r = 0; r < kRows; ++r) {
      const Vec gradient = load(dy + r * width + i, part), xhat = (load(x + r * width + i, part) - mean[r]) * rstd[r];
      const Vec g = gradient * gain;
      gamma_sum += gradient * xhat;
      beta_sum += gradient;
      g_sum[r].v[k] += keep(g, part);
      gx_sum[r].v[k] += keep(g * xhat, part);
    }
    store(dgamma + i, gamma_sum, part);
    store(dbeta + i, beta_sum, part);
  }

  /// Sums of g and of g xhat over each row.
  void sums(float* g_sum, float* gx_sum) const {
    Lanes g[kRows], gx[kRows];
    std::int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes)
      for (int k = 0; k < Lanes::kVectors; ++k) visit(i + k * kVectorFloats, Whole{}, g, gx, k);
    for_each_vec(i, width, [&](std::int64_t at, auto part) { visit(at, part, g, gx, (at - i) / kVectorFloats); });
    for (int r = 0; r < kRows; ++r) {
      g_sum[r] = fold_sum(g[r]);
      gx_sum[r] = fold_sum(gx[r]);
    }
  }
};

/// With xhat = (x - mean) rstd and g = dy gamma: dx = rstd (g - mean(g) - xhat mean(g xhat)); dgamma += dy xhat, dbeta += dy. The rows
/// are read from memory by the sums and from the first cache by dx, which may be dy.
template <int kRows, class T>
void backward_rows(const LayerNormBackward& args, float* sums, std::int64_t row, bool is_streamed) {
  const std::int64_t width = args.rows.width, first = row * width;
  const RowGroup<kRows, T> group{elements<const T>(args.x) + first,
                                 elements<const T>(args.dy) + first,
                                 width,
                                 args.mean + row,
                                 args.rstd + row,
                                 args.gamma,
                                 sums,
                                 sums + width};
  float g_sum[kRows], gx_sum[kRows];
  group.sums(g_sum, gx_sum);
  const float *gamma = args.gamma, count = static_cast<float>(width);
  for (int r = 0; r < kRows; ++r) {
    const float mean = args.mean[row + r], rstd = args.rstd[row + r], mean_g = g_sum[r] / count, mean_gx = gx_sum[r] / count;
    const T *x = group.x + r * width, *dy = group.dy + r * width;
    store_range(elements<T>(args.dx) + first + r * width, 0, width, is_streamed, [=](std::int64_t i, auto part) {
      const Vec xhat = (load(x + i, part) - mean) * rstd;
      return rstd * (load(dy + i, part) * load(gamma + i, part) - mean_g - xhat * mean_gx);
    });
  }
}

template <class T>
void backward_block(const LayerNormBackward& args, std::int64_t block, bool is_streamed) {
  const RowBlocks blocks = row_blocks(args.rows.count);
  const std::int64_t end = min_of(args.rows.count, (block + 1) * blocks.rows);
  float* sums = args.parts + block * 2 * args.rows.width;
  for (std::int64_t c = 0; c < 2 * args.rows.width; ++c) sums[c] = 0.0f;
  std::int64_t row = block * blocks.rows;
  for (; row < end; ++row) backward_rows<1, T>(args, sums, row, is_streamed);
}

}  // namespace

void layer_norm_forward(int threads, const LayerNormForward& args) {
  with_type(args.x, [&](auto tag) {
    using T = decltype(tag);
    const bool is_streamed = streams_rows<T>(args.y, args.rows, args.x, args.x);
    parallel_ranges(split_rows(threads, args.rows.count, args.rows.width), [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) forward_row<T>(args, row, is_streamed);
      end_streaming(is_streamed);
    });
  });
}

void layer_norm_backward(int threads, const LayerNormBackward& args) {
  const RowBlocks blocks = row_blocks(args.rows.count);
  with_type(args.x, [&](auto tag) {
    using T = decltype(tag);
    const bool is_streamed = streams_rows<T>(args.dx, args.rows, args.dy, args.x);
    parallel_ranges(split_rows(threads, blocks.count, blocks.rows * args.rows.width), [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t block = begin; block < end; ++block) backward_block<T>(args, block, is_streamed);
      end_streaming(is_streamed);
    });
  });
  fold_parts(args.dgamma, args.parts, 2 * args.rows.width, blocks.count, args.rows.width);
  fold_parts(args.dbeta, args.parts + args.rows.width, 2 * args.rows.width, blocks.count, args.rows.width);
}

}  // namespace zs::cpu::ZS_ISA
