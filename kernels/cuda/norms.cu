#include "kernels/cuda/device.h"

namespace zs::cuda {
namespace {

__device__ float plus_float(float a, float b) { return a + b; }

/// Sum over a row of f(element), where load(begin, values) gives a pack's elements and how many.
template <class Load, class F>
__device__ float row_sum(std::int64_t width, float* shared, const Load& load, const F& f) {
  float mine = 0;
  for_each_pack(width, [&](std::int64_t begin) {
    float values[kRowElems];
    const int count = load(begin, values);
    for (int i = 0; i < kRowElems; ++i) mine += i < count ? f(values[i]) : 0.0f;
  });
  return block_reduce(mine, shared, plus_float);
}

/// Layer norm takes the mean from a row and adds beta; RMS norm does neither.
enum class Norm { layer, rms };

/// One block a row. The first pass over it writes the sum with the residual, of which each thread reads back what it
/// alone wrote.
template <Norm kNorm>
__device__ inline void norm_forward(const LayerNormArgs& args, float* shared) {
  const std::int64_t row = blockIdx.x, width = args.rows.width, first = row * width;
  const float elems = static_cast<float>(width);
  const bool has_residual = args.residual.address != nullptr;
  const Data input{has_residual ? args.sum.address : args.x.address, args.x.is_bf16};
  const auto load = [&](std::int64_t begin, float(&x)[kRowElems]) {
    return load_some(input, first + begin, first + width, args.is_aligned, x);
  };
  const auto load_first = [&](std::int64_t begin, float(&x)[kRowElems]) {
    const int count = load_some(args.x, first + begin, first + width, args.is_aligned, x);
    if (!has_residual) return count;
    float residual[kRowElems];
    load_some(args.residual, first + begin, first + width, args.is_aligned, residual);
    for (int i = 0; i < kRowElems; ++i) x[i] = rounded(x[i] + residual[i], args.sum);
    store_some(args.sum, first + begin, first + width, args.is_aligned, x);
    return count;
  };
  const auto deviation = [](float x, float mean) { return (x - mean) * (x - mean); };
  float mean = 0, squares;
  if constexpr (kNorm == Norm::layer) {
    mean = row_sum(width, shared, load_first, [](float x) { return x; }) / elems;
    squares = row_sum(width, shared, load, [=](float x) { return deviation(x, mean); });
  } else {
    squares = row_sum(width, shared, load_first, [=](float x) { return deviation(x, 0.0f); });
  }
  const float rstd = 1.0f / sqrtf(squares / elems + args.eps);
  for_each_pack(width, [&](std::int64_t begin) {
    float x[kRowElems], gamma[kRowElems], beta[kRowElems] = {};
    load(begin, x);
    load_some(args.gamma, begin, width, args.is_aligned, gamma);
    if constexpr (kNorm == Norm::layer) load_some(args.beta, begin, width, args.is_aligned, beta);
    for (int i = 0; i < kRowElems; ++i) x[i] = (x[i] - mean) * rstd * gamma[i] + beta[i];
    store_some(args.y, first + begin, first + width, args.is_aligned, x);
  });
  if (threadIdx.x != 0) return;
  if constexpr (kNorm == Norm::layer) args.mean[row] = mean;
  args.rstd[row] = rstd;
}

/// One block a row. With xhat = (x - mean) rstd and g = dy gamma: dx = rstd (g - mean(g) - xhat mean(g xhat)) + skip.
/// dx may be dy or skip: each thread writes what it alone has read. RMS norm: the same without means of x and of g.
template <Norm kNorm>
__device__ inline void norm_backward(const LayerNormBackwardArgs& args, float* shared) {
  const std::int64_t row = blockIdx.x, width = args.rows.width, first = row * width;
  const float mean = kNorm == Norm::layer ? args.mean[row] : 0.0f, rstd = args.rstd[row],
              elems = static_cast<float>(width);
  // visit(begin, g, xhat): the gradient times gamma, and the normalised input, of a pack.
  const auto for_each = [&](const auto& visit) {
    for_each_pack(width, [&](std::int64_t begin) {
      float g[kRowElems], x[kRowElems], gamma[kRowElems];
      load_some(args.dy, first + begin, first + width, args.is_aligned, g);
      load_some(args.x, first + begin, first + width, args.is_aligned, x);
      load_some(args.gamma, begin, width, args.is_aligned, gamma);
      for (int i = 0; i < kRowElems; ++i) {
        g[i] *= gamma[i];  // 0 behind the row's end
        x[i] = (x[i] - mean) * rstd;
      }
      visit(begin, g, x);
    });
  };
  float g_sum = 0, gx_sum = 0;
  for_each([&](std::int64_t, const float(&g)[kRowElems], const float(&xhat)[kRowElems]) {
    for (int i = 0; i < kRowElems; ++i) {
      g_sum += g[i];
      gx_sum += g[i] * xhat[i];
    }
  });
  const float mean_g = kNorm == Norm::layer ? block_reduce(g_sum, shared, plus_float) / elems : 0.0f;
  const float mean_gx = block_reduce(gx_sum, shared, plus_float) / elems;
  for_each([&](std::int64_t begin, float(&g)[kRowElems], const float(&xhat)[kRowElems]) {
    for (int i = 0; i < kRowElems; ++i) g[i] = rstd * (g[i] - mean_g - xhat[i] * mean_gx);
    if (args.skip.address != nullptr) {
      float skip[kRowElems];
      load_some(args.skip, first + begin, first + width, args.is_aligned, skip);
      for (int i = 0; i < kRowElems; ++i) g[i] = rounded(g[i], args.dx) + skip[i];
    }
    store_some(args.dx, first + begin, first + width, args.is_aligned, g);
  });
}

}  // namespace

extern "C" __global__ void zs_layer_norm_forward(const LayerNormArgs args) {
  __shared__ float shared[kThreads];
  norm_forward<Norm::layer>(args, shared);
}
extern "C" __global__ void zs_rms_norm_forward(const LayerNormArgs args) {
  __shared__ float shared[kThreads];
  norm_forward<Norm::rms>(args, shared);
}
extern "C" __global__ void zs_layer_norm_backward(const LayerNormBackwardArgs args) {
  __shared__ float shared[kThreads];
  norm_backward<Norm::layer>(args, shared);
}
extern "C" __global__ void zs_rms_norm_backward(const LayerNormBackwardArgs args) {
  __shared__ float shared[kThreads];
  norm_backward<Norm::rms>(args, shared);
}

}  // namespace zs::cuda
