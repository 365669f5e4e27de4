#include "kernels/cuda/warp_rows.h"

namespace zs::cuda {
namespace {

/// Layer norm takes the mean from a row and adds beta; RMS norm does neither.
enum class Norm { layer, rms };

/// (warp) Sum over a row of f(element).
template <class Row, class F>
__device__ float row_sum(const Row& row, std::int64_t width, const F& f) {
  float mine = 0;
  Row::for_each(width, [&](std::int64_t begin, int p) {
    float values[kRowElems];
    const int count = row.get(begin, p, values);
    for (int i = 0; i < kRowElems; ++i) mine += i < count ? f(values[i]) : 0.0f;
  });
  return warp_sum(mine);
}

/// x := x + residual, written to args.sum. Each lane reads back what it alone wrote.
template <class Row>
__device__ void add_residual(const LayerNormArgs& args, std::int64_t first, Row& x) {
  const std::int64_t width = args.rows.width;
  const Row residual(args.residual, first, width);
  Row::for_each(width, [&](std::int64_t begin, int p) {
    float a[kRowElems], b[kRowElems];
    x.get(begin, p, a);
    residual.get(begin, p, b);
    for (int i = 0; i < kRowElems; ++i) a[i] = rounded<typename Row::P::Type>(a[i] + b[i]);
    Row::P::store(args.sum, first + begin, first + width, a);
    x.put(begin, p, a);
  });
  x.move_to(args.sum);
}

/// gamma of Param, and beta of whatever it has; Param void: both of the row's dtype, so that no load waits for a
/// branch.
template <Norm kNorm, class P, class Param>
__device__ void load_parameters(const LayerNormArgs& args, std::int64_t begin, float (&gamma)[kRowElems],
                                float (&beta)[kRowElems]) {
  const std::int64_t width = args.rows.width;
  if constexpr (std::is_void_v<Param>) {
    P::load(args.gamma, begin, width, gamma);
    if constexpr (kNorm == Norm::layer) P::load(args.beta, begin, width, beta);
  } else {
    P::template load<Param>(args.gamma, begin, width, gamma);
    if constexpr (kNorm == Norm::layer) {
      if (args.is_beta_bf16)
        P::template load<Bf16>(args.beta, begin, width, beta);
      else
        P::template load<float>(args.beta, begin, width, beta);
    }
  }
}

/// One warp a row; parameters of Param.
template <Norm kNorm, class Row, class Param = void>
__device__ void norm_forward(const LayerNormArgs& args) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp_of_block(), width = args.rows.width,
                     first = row * width;
  if (row >= args.rows.count) return;
  const float elems = static_cast<float>(width);
  Row x(args.x, first, width);
  if (args.residual != nullptr) add_residual(args, first, x);
  float mean = 0;
  if constexpr (kNorm == Norm::layer) mean = row_sum(x, width, [](float value) { return value; }) / elems;
  const float squares = row_sum(x, width, [=](float value) { return (value - mean) * (value - mean); });
  const float rstd = 1.0f / sqrtf(squares / elems + args.eps);
  Row::for_each(width, [&](std::int64_t begin, int p) {
    float y[kRowElems], gamma[kRowElems], beta[kRowElems] = {};
    x.get(begin, p, y);
    load_parameters<kNorm, typename Row::P, Param>(args, begin, gamma, beta);
    for (int i = 0; i < kRowElems; ++i) y[i] = (y[i] - mean) * rstd * (gamma[i] + args.offset) + beta[i];
    Row::P::store(args.y, first + begin, first + width, y);
  });
  if (lane_of_warp() != 0) return;
  if constexpr (kNorm == Norm::layer) args.mean[row] = mean;
  args.rstd[row] = rstd;
}

/// Gradient of a row. With xhat = (x - mean) rstd and g = dy gamma: dx = rstd (g - mean(g) - xhat mean(g xhat)) + skip.
/// RMS norm: the same without means of x and of g.
template <Norm kNorm, class Row, class Param = typename Row::P::Type>
class NormGradient {
 public:
  __device__ NormGradient(const LayerNormBackwardArgs& args, std::int64_t row)
      : args_(args),
        first_(row * args.rows.width),
        dy_(args.dy, first_, args.rows.width),
        x_(args.x, first_, args.rows.width),
        mean_(kNorm == Norm::layer ? args.mean[row] : 0.0f),
        rstd_(args.rstd[row]) {}

  /// (warp) visit(p, dy, xhat) sees each pack once. dx may be dy or skip: each lane writes what it alone has read.
  template <class Visit>
  __device__ void write_dx(const Visit& visit) const {
    const float elems = static_cast<float>(args_.rows.width);
    float g_sum = 0, gx_sum = 0;
    for_each([&](std::int64_t, int p, const float(&dy)[kRowElems], const float(&xhat)[kRowElems],
                 const float(&gamma)[kRowElems]) {
      visit(p, dy, xhat);
      for (int i = 0; i < kRowElems; ++i) {
        const float g = dy[i] * gamma[i];  // 0 after the row's end
        g_sum += g;
        gx_sum += g * xhat[i];
      }
    });
    const float mean_g = kNorm == Norm::layer ? warp_sum(g_sum) / elems : 0.0f, mean_gx = warp_sum(gx_sum) / elems;
    const std::int64_t end = first_ + args_.rows.width;
    for_each([&](std::int64_t begin, int, const float(&dy)[kRowElems], const float(&xhat)[kRowElems],
                 const float(&gamma)[kRowElems]) {
      float dx[kRowElems];
      for (int i = 0; i < kRowElems; ++i) dx[i] = rstd_ * (dy[i] * gamma[i] - mean_g - xhat[i] * mean_gx);
      if (args_.skip != nullptr) {
        float skip[kRowElems];
        Row::P::load(args_.skip, first_ + begin, end, skip);
        for (int i = 0; i < kRowElems; ++i) dx[i] = rounded<typename Row::P::Type>(dx[i]) + skip[i];
      }
      Row::P::store(args_.dx, first_ + begin, end, dx);
    });
  }

 private:
  template <class Visit>
  __device__ void for_each(const Visit& visit) const {
    Row::for_each(args_.rows.width, [&](std::int64_t begin, int p) {
      float dy[kRowElems], x[kRowElems], gamma[kRowElems];
      dy_.get(begin, p, dy);
      x_.get(begin, p, x);
      Row::P::template load<Param>(args_.gamma, begin, args_.rows.width, gamma);
      for (int i = 0; i < kRowElems; ++i) {
        x[i] = (x[i] - mean_) * rstd_;
        gamma[i] += args_.offset;
      }
      visit(begin, p, dy, x, gamma);
    });
  }

  const LayerNormBackwardArgs& args_;
  const std::int64_t first_;
  const Row dy_, x_;
  const float mean_, rstd_;
};

/// One warp a row.
template <Norm kNorm, class Row, class Param>
__device__ inline void norm_backward(const LayerNormBackwardArgs& args) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp_of_block();
  if (row < args.rows.count)
    NormGradient<kNorm, Row, Param>(args, row).write_dx(
        [](int, const float(&)[kRowElems], const float(&)[kRowElems]) {});
}

/// One warp a row after the other; sums over them, of dy xhat and for layer norm of dy, stay in registers. Those of the
/// block's warps are added in order, and become the block's part.
template <Norm kNorm, class T, int kPacks>
__device__ inline void norm_gradients(const LayerNormBackwardArgs& args) {
  using Row = HeldRow<T, kPacks>;
  constexpr int kSums = kNorm == Norm::layer ? 2 : 1;
  float sums[kSums][kPacks][kRowElems] = {};
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp_of_block(); row < args.rows.count;
       row += static_cast<std::int64_t>(gridDim.x) * kWarps)
    NormGradient<kNorm, Row>(args, row).write_dx(
        [&](int p, const float(&dy)[kRowElems], const float(&xhat)[kRowElems]) {
          for (int i = 0; i < kRowElems; ++i) {
            sums[0][p][i] += dy[i] * xhat[i];
            if constexpr (kSums == 2) sums[1][p][i] += dy[i];
          }
        });
  __shared__ float shared[kSums][kPacks][kRowElems][kWarp];  // lanes side by side
  const std::int64_t width = args.rows.width;
  for (int warp = 0; warp < kWarps; ++warp) {
    if (warp == warp_of_block())
      Row::for_each(width, [&](std::int64_t, int p) {
        for (int s = 0; s < kSums; ++s)
          for (int i = 0; i < kRowElems; ++i) {
            float& sum = shared[s][p][i][lane_of_warp()];
            sum = warp == 0 ? sums[s][p][i] : sum + sums[s][p][i];
          }
      });
    __syncthreads();
  }
  for (int s = 0; s < kSums; ++s)
    for (std::int64_t column = threadIdx.x; column < width; column += kThreads)
      args.parts[(static_cast<std::int64_t>(blockIdx.x) * kSums + s) * width + column] =
          shared[s][column / kWarpElems][column % kRowElems][column % kWarpElems / kRowElems];
}

}  // namespace

/// Kernels for rows that are held; for wider ones; for any, T of x and U of the parameters.
#define ZS_NORM_KERNELS(norm, wide_sums)                                                                        \
  ZS_KERNEL(zs_##norm##_norm_forward, LayerNormArgs, norm_forward<Norm::norm, HeldRow<T, kNormPacks>>(args))    \
  ZS_KERNEL_OF(zs_##norm##_norm_forward_wide, Bf16, Bf16, LayerNormArgs,                                        \
               norm_forward<Norm::norm, HeldRow<T, kWideNormPacks>>(args))                                      \
  ZS_PAIR_KERNEL(zs_##norm##_norm_forward_any, LayerNormArgs,                                                   \
                 ZS_BY_PACKS(norm_forward<Norm::norm, ReadRow<P>, U>(args)))                                    \
  ZS_PAIR_KERNEL(zs_##norm##_norm_backward, LayerNormBackwardArgs,                                              \
                 ZS_BY_PACKS(norm_backward<Norm::norm, ReadRow<P>, U>(args)))                                   \
  ZS_KERNEL(zs_##norm##_norm_gradients, LayerNormBackwardArgs, norm_gradients<Norm::norm, T, kNormPacks>(args)) \
  ZS_KERNEL_OF(zs_##norm##_norm_gradients_wide, Bf16, Bf16, LayerNormBackwardArgs,                              \
               norm_gradients<Norm::norm, T, wide_sums>(args))
ZS_NORM_KERNELS(layer, kWideSumsPacks)
ZS_NORM_KERNELS(rms, kWideNormPacks)

}  // namespace zs::cuda
