#include "kernels/cuda/device.h"

namespace zs::cuda {
namespace {

/// One pack of out := f(a, b) for each thread; the last one, and all where addresses are odd, element by element.
template <class Out, class A, class B, class F>
__device__ void map_pack(const MapArgs& args, const F& f) {
  constexpr int kElems = sizeof(Out) == 2 || sizeof(A) == 2 || sizeof(B) == 2 ? 8 : 4;
  Out* const out = elements<Out>(args.out);
  const A* const a = elements<const A>(args.a);
  const B* const b = elements<const B>(args.b);
  const std::int64_t begin = global_thread() * kElems;
  if (args.is_aligned && begin + kElems <= args.elems) {
    float x[kElems], y[kElems] = {};
    load_pack(a + begin, x);
    if (b != nullptr) load_pack(b + begin, y);
    for (int i = 0; i < kElems; ++i) x[i] = f(x[i], y[i]);
    store_pack(out + begin, x);
    return;
  }
  for (std::int64_t i = begin; i < begin + kElems && i < args.elems; ++i)
    out[i] = from_float<Out>(f(to_float(a[i]), b != nullptr ? to_float(b[i]) : 0.0f));
}

/// out and a have one type, and b has, or is not there.
template <class F>
__device__ void map_same(const MapArgs& args, const F& f) {
  with_type(args.out, [&](auto tag) {
    using T = decltype(tag);
    map_pack<T, T, T>(args, f);
  });
}

constexpr float kTwoRootTwoOverPi = 1.5957691216057308f;  // 2 sqrt(2 / pi)
constexpr float kCubic = 0.044715f;

/// Beyond +-20 the function is 0 or x to f32; keeps powers of x finite. NaN stays NaN.
__device__ inline float clamp20(float x) { return x < -20.0f ? -20.0f : x > 20.0f ? 20.0f : x; }

/// 0.5 (1 + tanh u) = 1 / (1 + e^(-2u)): no cancellation for negative x.
__device__ inline float tanh_gate(float x) {
  return 1.0f / (1.0f + expf(-x * kTwoRootTwoOverPi * fmaf(kCubic, x * x, 1.0f)));
}
/// P(X <= x) of the normal distribution.
__device__ inline float normal_below(float x) { return 0.5f * erfcf(-x * 0.70710678118654752f); }

__device__ inline float gelu(float x, bool is_erf) {
  return x * (is_erf ? normal_below(clamp20(x)) : tanh_gate(clamp20(x)));
}

__device__ inline float gelu_slope(float value, bool is_erf) {
  const float x = clamp20(value);
  if (is_erf) return fmaf(x, 0.39894228040143268f * expf(-0.5f * x * x), normal_below(x));
  const float gate = tanh_gate(x), inner = fmaf(3.0f * kTwoRootTwoOverPi * kCubic, x * x, kTwoRootTwoOverPi);
  return gate * fmaf(x * (1.0f - gate), inner, 1.0f);
}

/// Below -80 silu is taken to be what it is there, -1.4e-33. NaN stays NaN.
__device__ inline float above_80(float x) { return x < -80.0f ? -80.0f : x; }
__device__ inline float silu_gate(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ inline float silu(float value) {
  const float x = above_80(value);
  return x * silu_gate(x);
}
__device__ inline float silu_slope(float value) {
  const float x = above_80(value), gate = silu_gate(x);
  return gate * fmaf(x, 1.0f - gate, 1.0f);
}

/// visit(at, end, at_x) for the pack that this thread takes: it begins at `at` in y, whose row ends at `end`, and in x
/// at `at_x` and `width` behind it.
template <class Visit>
__device__ inline void with_halves(const SwigluArgs& args, const Visit& visit) {
  const std::int64_t width = args.rows.width, packs = (width + kRowElems - 1) / kRowElems;
  const std::int64_t row = global_thread() / packs, begin = global_thread() % packs * kRowElems;
  if (row < args.rows.count) visit(row * width + begin, (row + 1) * width, 2 * row * width + begin);
}

template <class Unit>
__device__ void copy_unit(const CopyRowsArgs& args) {
  const std::int64_t i = global_thread();
  if (i >= args.rows * args.run) return;
  const std::int64_t row = i / args.run, column = i % args.run;
  static_cast<Unit*>(args.out)[row * args.out_stride + column] =
      static_cast<const Unit*>(args.in)[row * args.in_stride + column];
}

}  // namespace

extern "C" __global__ void zs_cast(const MapArgs args) {
  with_type(args.out, [&](auto out_tag) {
    with_type(args.a, [&](auto in_tag) {
      map_pack<decltype(out_tag), decltype(in_tag), float>(args, [](float x, float) { return x; });
    });
  });
}

extern "C" __global__ void zs_add(const MapArgs args) {
  map_same(args, [](float x, float y) { return x + y; });
}

extern "C" __global__ void zs_scale(const MapArgs args) {
  map_same(args, [&](float x, float) { return x * args.factor; });
}

extern "C" __global__ void zs_accumulate(const MapArgs args) {
  with_type(args.out, [&](auto out_tag) {
    with_type(args.b, [&](auto in_tag) {
      using T = decltype(out_tag);
      map_pack<T, T, decltype(in_tag)>(args, [](float x, float y) { return x + y; });
    });
  });
}

extern "C" __global__ void zs_gelu_forward(const MapArgs args) {
  map_same(args, [&](float x, float) { return gelu(x, args.is_erf); });
}

/// a: dy, b: x
extern "C" __global__ void zs_gelu_backward(const MapArgs args) {
  map_same(args, [&](float dy, float x) { return dy * gelu_slope(x, args.is_erf); });
}

extern "C" __global__ void zs_swiglu_forward(const SwigluArgs args) {
  with_halves(args, [&](std::int64_t at, std::int64_t end, std::int64_t at_x) {
    const std::int64_t width = args.rows.width, elems = end - at;
    float a[kRowElems], b[kRowElems];
    load_some(args.x, at_x, at_x + elems, args.is_aligned, a);
    load_some(args.x, at_x + width, at_x + width + elems, args.is_aligned, b);
    for (int i = 0; i < kRowElems; ++i) a[i] = silu(a[i]) * b[i];
    store_some(args.y, at, end, args.is_aligned, a);
  });
}

extern "C" __global__ void zs_swiglu_backward(const SwigluArgs args) {
  with_halves(args, [&](std::int64_t at, std::int64_t end, std::int64_t at_x) {
    const std::int64_t width = args.rows.width, elems = end - at;
    float a[kRowElems], b[kRowElems], dy[kRowElems];
    load_some(args.x, at_x, at_x + elems, args.is_aligned, a);
    load_some(args.x, at_x + width, at_x + width + elems, args.is_aligned, b);
    load_some(args.dy, at, end, args.is_aligned, dy);
    for (int i = 0; i < kRowElems; ++i) {
      b[i] = dy[i] * b[i] * silu_slope(a[i]);
      a[i] = dy[i] * silu(a[i]);
    }
    store_some(args.dx, at_x, at_x + elems, args.is_aligned, b);
    store_some(args.dx, at_x + width, at_x + width + elems, args.is_aligned, a);
  });
}

extern "C" __global__ void zs_copy_rows(const CopyRowsArgs args) {
  switch (args.unit_bytes) {
    case 16: return copy_unit<Words>(args);
    case 8: return copy_unit<std::uint64_t>(args);
    case 4: return copy_unit<std::uint32_t>(args);
    case 2: return copy_unit<std::uint16_t>(args);
    default: return copy_unit<std::uint8_t>(args);
  }
}

}  // namespace zs::cuda
