#include "kernels/cpu/isa_functions.h"
#include "kernels/cpu/vec_math.h"

namespace zs::cpu::ZS_ISA {
namespace {

/// out[i] := f(in[i])
template <class F>
void map_unary(int threads, Data out, Data in, std::int64_t n, F f) {
  with_type(out, [&](auto out_tag) {
    with_type(in, [&](auto in_tag) {
      using Out = decltype(out_tag);
      using In = decltype(in_tag);
      parallel_ranges(split_elements(threads, n), [=](std::int64_t begin, std::int64_t end) {
        Out* y = elements<Out>(out);
        const In* x = elements<const In>(in);
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i) y[i] = from_float<Out>(f(to_float(x[i])));
      });
    });
  });
}

/// out[i] := f(a[i], b[i]); out and a have one dtype
template <class F>
void map_binary(int threads, Data out, Data a, Data b, std::int64_t n, F f) {
  with_type(out, [&](auto out_tag) {
    with_type(b, [&](auto b_tag) {
      using T = decltype(out_tag);
      using B = decltype(b_tag);
      parallel_ranges(split_elements(threads, n), [=](std::int64_t begin, std::int64_t end) {
        T* y = elements<T>(out);
        const T* x = elements<const T>(a);
        const B* z = elements<const B>(b);
#pragma omp simd
        for (std::int64_t i = begin; i < end; ++i) y[i] = from_float<T>(f(to_float(x[i]), to_float(z[i])));
      });
    });
  });
}

constexpr float kTwoRootTwoOverPi = 1.5957691216057308f;  // 2 sqrt(2 / pi)
constexpr float kCubic = 0.044715f;

/// Beyond +-20 the function is 0 or x to f32; keeps powers of x finite. NaN stays NaN.
inline float clamp20(float x) {
  const float low = x < -20.0f ? -20.0f : x;
  return low > 20.0f ? 20.0f : low;
}

/// 0.5 (1 + tanh u) = 1 / (1 + e^(-2u)): no cancellation for negative x.
inline float tanh_gate(float x) {
  const float c = clamp20(x);
  return 1.0f / (1.0f + exp_of(-kTwoRootTwoOverPi * (c + kCubic * c * c * c)));
}

inline float gelu_tanh(float x) { return x * tanh_gate(x); }
inline float gelu_tanh_slope(float x) {
  const float gate = tanh_gate(x), c = clamp20(x);
  return gate + x * gate * (1.0f - gate) * (kTwoRootTwoOverPi * (1.0f + 3.0f * kCubic * c * c));
}

struct Normal {
  float below;    // P(X <= x)
  float density;  // at x
};
inline Normal normal_at(float x) {
  const float c = clamp20(x);
  const float e = exp_of(-0.5f * c * c);
  const float a = (c < 0.0f ? -c : c) * 0.70710678118654752f;
  const float half_tail = 0.5f * erfc_of(a, e);
  return {c < 0.0f ? half_tail : 1.0f - half_tail, 0.39894228040143268f * e};
}
inline float gelu_erf(float x) { return x * normal_at(x).below; }
inline float gelu_erf_slope(float x) {
  const Normal normal = normal_at(x);
  return normal.below + x * normal.density;
}

}  // namespace

void cast(int threads, Data out, Data in, std::int64_t n) {
  map_unary(threads, out, in, n, [](float x) { return x; });
}

void add(int threads, Data out, Data a, Data b, std::int64_t n) {
  map_binary(threads, out, a, b, n, [](float x, float y) { return x + y; });
}

void scale(int threads, Data out, Data in, std::int64_t n, float factor) {
  map_unary(threads, out, in, n, [factor](float x) { return x * factor; });
}

void accumulate(int threads, Data out, Data in, std::int64_t n) {
  map_binary(threads, out, out, in, n, [](float x, float y) { return x + y; });
}

void gelu_forward(int threads, Data y, Data x, std::int64_t n, GeluKind kind) {
  if (kind == GeluKind::tanh) {
    map_unary(threads, y, x, n, [](float v) { return gelu_tanh(v); });
  } else {
    map_unary(threads, y, x, n, [](float v) { return gelu_erf(v); });
  }
}

void gelu_backward(int threads, Data dx, Data dy, Data x, std::int64_t n, GeluKind kind) {
  if (kind == GeluKind::tanh) {
    map_binary(threads, dx, dy, x, n, [](float g, float v) { return g * gelu_tanh_slope(v); });
  } else {
    map_binary(threads, dx, dy, x, n, [](float g, float v) { return g * gelu_erf_slope(v); });
  }
}

}  // namespace zs::cpu::ZS_ISA
