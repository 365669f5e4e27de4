#if defined(ZS_ISA)
#include "kernels/cpu/gelu.h"
#include "kernels/cpu/isa_families.h"
#include "kernels/cpu/stream_store.h"
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
      const bool is_streamed = streams<Out>(out, n, in, in);
      parallel_ranges(split_elements(threads, n), [=](std::int64_t begin, std::int64_t end) {
        const In* x = elements<const In>(in);
        constexpr Order kOrder = sizeof(Out) == sizeof(In) ? kOwnOrder<Out> : Order::in_line;
        store_range<kOrder>(elements<Out>(out), begin, end, is_streamed, [=](std::int64_t i, auto part) {
          fetch_ahead(x + i, part);
          return each(f, load(x + i, part));
        });
        end_streaming(is_streamed);
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
      const bool is_streamed = streams<T>(out, n, a, b);
      parallel_ranges(split_elements(threads, n), [=](std::int64_t begin, std::int64_t end) {
        const T* x = elements<const T>(a);
        const B* z = elements<const B>(b);
        constexpr Order kOrder = sizeof(T) == sizeof(B) ? kOwnOrder<T> : Order::in_line;
        store_range<kOrder>(elements<T>(out), begin, end, is_streamed, [=](std::int64_t i, auto part) {
          fetch_ahead(x + i, part);
          fetch_ahead(z + i, part);
          return each(f, load(x + i, part), load(z + i, part));
        });
        end_streaming(is_streamed);
      });
    });
  });
}

struct Normal {
  Vec below;    // P(X <= x)
  Vec density;  // at x
};
__attribute__((always_inline)) inline Normal normal_at(Vec x) {
  const Vec c = clamped(x);
  const Vec e = exp_of<Precision::full>(-0.5f * c * c);
  const Vec a = (c < 0.0f ? -c : c) * kRootHalf;
  const Vec half_tail = 0.5f * erfc_of(a, e);
  return {c < 0.0f ? half_tail : 1.0f - half_tail, kNormalAtZero * e};
}
__attribute__((always_inline)) inline Vec gelu_erf(Vec x) { return x * normal_at(x).below; }
__attribute__((always_inline)) inline Vec gelu_erf_slope(Vec x) {
  const Normal normal = normal_at(x);
  return fused(x, normal.density, normal.below);
}

void zero(int threads, Data out, std::int64_t n) {
  const bool is_streamed = streams<float>(out, n, {}, {});
  parallel_ranges(split_elements(threads, n), [=](std::int64_t begin, std::int64_t end) {
    store_range<Order::in_line>(elements<float>(out), begin, end, is_streamed,
                                [](std::int64_t, auto part) { return none(part); });
    end_streaming(is_streamed);
  });
}

void cast(int threads, Data out, Data in, std::int64_t n) {
  map_unary(threads, out, in, n, [](Vec x) { return x; });
}

void add(int threads, Data out, Data a, Data b, std::int64_t n) {
  map_binary(threads, out, a, b, n, [](Vec x, Vec y) { return x + y; });
}

void scale(int threads, Data out, Data in, std::int64_t n, float factor) {
  map_unary(threads, out, in, n, [factor](Vec x) { return x * factor; });
}

void accumulate(int threads, Data out, Data in, std::int64_t n) {
  map_binary(threads, out, out, in, n, [](Vec x, Vec y) { return x + y; });
}

void gelu_forward(int threads, Data y, Data x, std::int64_t n, GeluKind kind) {
  if (kind == GeluKind::erf) {
    map_unary(threads, y, x, n, [](Vec v) { return gelu_erf(v); });
  } else if (y.is_bf16) {
    map_unary(threads, y, x, n, [](Vec v) { return gelu_tanh<Precision::bf16>(v); });
  } else {
    map_unary(threads, y, x, n, [](Vec v) { return gelu_tanh<Precision::full>(v); });
  }
}

void gelu_backward(int threads, Data dx, Data dy, Data x, std::int64_t n, GeluKind kind) {
  if (kind == GeluKind::erf) {
    map_binary(threads, dx, dy, x, n, [](Vec g, Vec v) { return g * gelu_erf_slope(v); });
  } else if (dx.is_bf16) {
    map_binary(threads, dx, dy, x, n, [](Vec g, Vec v) { return g * gelu_tanh_slope<Precision::bf16>(v); });
  } else {
    map_binary(threads, dx, dy, x, n, [](Vec g, Vec v) { return g * gelu_tanh_slope<Precision::full>(v); });
  }
}

}  // namespace

void fill_elementwise(Isa& isa) {
  isa.zero = zero;
  isa.cast = cast;
  isa.add = add;
  isa.scale = scale;
  isa.accumulate = accumulate;
  isa.gelu_forward = gelu_forward;
  isa.gelu_backward = gelu_backward;
}

}  // namespace zs::cpu::ZS_ISA
#else
#include "kernels/checks.h"
#include "kernels/cpu/host.h"
#include "kernels/families.h"

namespace zs::cpu {
namespace {

void cast(ExecContext& ctx, Buffer out, Buffer in) {
  isa().cast(ctx.threads(), data_of(out), data_of(in), checks::same_elems(out, in));
}

void add(ExecContext& ctx, Buffer out, Buffer a, Buffer b) {
  const std::int64_t elems = checks::alike(out, a, b);
  isa().add(ctx.threads(), data_of(out), data_of(a), data_of(b), elems);
}

void scale(ExecContext& ctx, Buffer out, Buffer in, float factor) {
  isa().scale(ctx.threads(), data_of(out), data_of(in), checks::alike(out, in, in), factor);
}

void accumulate(ExecContext& ctx, Buffer out, Buffer in) {
  isa().accumulate(ctx.threads(), data_of(out), data_of(in), checks::same_elems(out, in));
}

void gelu_forward(ExecContext& ctx, Buffer y, Buffer x, GeluKind kind) {
  isa().gelu_forward(ctx.threads(), data_of(y), data_of(x), checks::alike(y, x, x), kind);
}

void gelu_backward(ExecContext& ctx, Buffer dx, Buffer dy, Buffer x, GeluKind kind) {
  const std::int64_t elems = checks::alike(dx, dy, x);
  isa().gelu_backward(ctx.threads(), data_of(dx), data_of(dy), data_of(x), elems, kind);
}

}  // namespace

void fill_elementwise(KernelTable& table) {
  table.cast = cast;
  table.add = add;
  table.scale = scale;
  table.accumulate = accumulate;
  table.gelu_forward = gelu_forward;
  table.gelu_backward = gelu_backward;
}

}  // namespace zs::cpu
#endif
