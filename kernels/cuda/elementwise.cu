#include "kernels/cuda/device.h"
#include "kernels/gelu_silu.h"
#include "kernels/map_op.h"

namespace zs::cuda {
namespace {

/// One pack of out := f(a, b) for each thread; the last one, and all where addresses are odd, element by element.
template <class Out, class A = Out, class B = A, class F>
__device__ void map_pack(const MapArgs& args, const F& f) {
  constexpr int kElems = pack_elems(sizeof(Out) == 2 || sizeof(A) == 2 || sizeof(B) == 2);
  const std::int64_t begin = global_thread() * kElems;
  with_packs<Out>(args.is_aligned && begin + kElems <= args.elems, [&](auto packs) {
    float x[kElems], y[kElems];
    packs.template load<A>(args.a, begin, args.elems, x);
    packs.template load<B>(args.b, begin, args.elems, y);
    for (int i = 0; i < kElems; ++i) x[i] = f(x[i], y[i]);
    packs.store(args.out, begin, args.elems, x);
  });
}

/// NaN stays NaN, here and below.
__device__ inline float clamped(float x) { return x < -kMostOfGelu ? -kMostOfGelu : x > kMostOfGelu ? kMostOfGelu : x; }

/// 0.5 (1 + tanh u) = 1 / (1 + e^(-2u)): no cancellation for negative x.
__device__ inline float tanh_gate(float x) {
  return 1.0f / (1.0f + expf(-x * kTwoRootTwoOverPi * fmaf(kCubic, x * x, 1.0f)));
}
/// P(X <= x) of the normal distribution.
__device__ inline float normal_below(float x) { return 0.5f * erfcf(-x * kRootHalf); }

__device__ inline float gelu(float x, bool is_erf) {
  return x * (is_erf ? normal_below(clamped(x)) : tanh_gate(clamped(x)));
}

__device__ inline float gelu_slope(float value, bool is_erf) {
  const float x = clamped(value);
  if (is_erf) return fmaf(x, kNormalAtZero * expf(-0.5f * x * x), normal_below(x));
  const float gate = tanh_gate(x), inner = fmaf(3.0f * kTwoRootTwoOverPi * kCubic, x * x, kTwoRootTwoOverPi);
  return gate * fmaf(x * (1.0f - gate), inner, 1.0f);
}

__device__ inline float not_below(float x) { return x < kLeastOfSilu ? kLeastOfSilu : x; }
__device__ inline float silu(float value) {
  const float x = not_below(value);
  return x * sigmoid_of(x);
}
__device__ inline float silu_slope(float value) {
  const float x = not_below(value), gate = sigmoid_of(x);
  return gate * fmaf(x, 1.0f - gate, 1.0f);
}

/// The pack that this thread takes: from `at` on in y, whose row ends at `end`, and in x from `at_x` on, whose row ends
/// at `end_x`, and `width` after it. None: at is end.
struct Halves {
  std::int64_t at, end, at_x, end_x;
};
__device__ inline Halves halves_of_thread(const Rows& rows) {
  const std::int64_t width = rows.width, packs = (width + kRowElems - 1) / kRowElems;
  const std::int64_t row = global_thread() / packs, begin = global_thread() % packs * kRowElems;
  if (row >= rows.count) return {};
  return {row * width + begin, (row + 1) * width, 2 * row * width + begin, (2 * row + 1) * width};
}

/// Function of a gate's elements, and its slope.
struct Silu {
  __device__ static float of(float x) { return silu(x); }
  __device__ static float slope(float x) { return silu_slope(x); }
};
struct Gelu {
  __device__ static float of(float x) { return gelu(x, false); }
  __device__ static float slope(float x) { return gelu_slope(x, false); }
};

template <class P, class Gate>
__device__ void gated_forward(const SwigluArgs& args) {
  const Halves place = halves_of_thread(args.rows);
  if (place.at == place.end) return;
  const std::int64_t width = args.rows.width;
  float a[kRowElems], b[kRowElems];
  P::load(args.x, place.at_x, place.end_x, a);
  P::load(args.x, place.at_x + width, place.end_x + width, b);
  for (int i = 0; i < kRowElems; ++i) a[i] = Gate::of(a[i]) * b[i];
  P::store(args.y, place.at, place.end, a);
}

template <class P, class Gate>
__device__ void gated_backward(const SwigluArgs& args) {
  const Halves place = halves_of_thread(args.rows);
  if (place.at == place.end) return;
  const std::int64_t width = args.rows.width;
  float a[kRowElems], b[kRowElems], dy[kRowElems];
  P::load(args.x, place.at_x, place.end_x, a);
  P::load(args.x, place.at_x + width, place.end_x + width, b);
  P::load(args.dy, place.at, place.end, dy);
  for (int i = 0; i < kRowElems; ++i) {
    b[i] = dy[i] * b[i] * Gate::slope(a[i]);
    a[i] = dy[i] * Gate::of(a[i]);
  }
  P::store(args.dx, place.at_x, place.end_x, b);
  P::store(args.dx, place.at_x + width, place.end_x + width, a);
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

ZS_PAIR_KERNEL(zs_cast, MapArgs, map_pack<T, U>(args, [](float x, float) { return x; }))
ZS_PAIR_KERNEL(zs_accumulate, MapArgs, map_pack<T, T, U>(args, [](float x, float y) { return x + y; }))
ZS_KERNEL(zs_add, MapArgs, map_pack<T>(args, [](float x, float y) { return x + y; }))
ZS_KERNEL(zs_scale, MapArgs, map_pack<T>(args, [&](float x, float) { return x * args.factor; }))
ZS_KERNEL(zs_gelu_forward, MapArgs, map_pack<T>(args, [&](float x, float) { return gelu(x, args.is_erf); }))
/// a: dy, b: x
ZS_KERNEL(zs_gelu_backward, MapArgs,
          map_pack<T>(args, [&](float dy, float x) { return dy * gelu_slope(x, args.is_erf); }))
ZS_KERNEL(zs_swiglu_forward, SwigluArgs, ZS_BY_PACKS(gated_forward<P, Silu>(args)))
ZS_KERNEL(zs_swiglu_backward, SwigluArgs, ZS_BY_PACKS(gated_backward<P, Silu>(args)))
ZS_KERNEL(zs_geglu_forward, SwigluArgs, ZS_BY_PACKS(gated_forward<P, Gelu>(args)))
ZS_KERNEL(zs_geglu_backward, SwigluArgs, ZS_BY_PACKS(gated_backward<P, Gelu>(args)))

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
