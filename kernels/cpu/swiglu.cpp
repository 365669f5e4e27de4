#if defined(ZS_ISA)
#include "kernels/cpu/gelu.h"
#include "kernels/cpu/isa_families.h"
#include "kernels/cpu/stream_store.h"

namespace zs::cpu::ZS_ISA {
namespace {

/// NaN stays NaN.
__attribute__((always_inline)) inline Vec not_below(Vec a) { return higher_of(all<Vec>(kLeastOfSilu), a); }

template <Precision kPrecision>
__attribute__((always_inline)) inline Vec gate_of(Vec a) {
  return inverse_of(1.0f + exp_of<kPrecision>(-a));
}
/// Function of a gate's elements, and its slope.
struct Silu {
  template <Precision kPrecision>
  static Vec of(Vec a) {
    const Vec c = not_below(a);
    return c * gate_of<kPrecision>(c);
  }
  template <Precision kPrecision>
  static Vec slope(Vec a) {
    const Vec c = not_below(a), gate = gate_of<kPrecision>(c);
    return gate * fused(c, 1.0f - gate, all<Vec>(1.0f));
  }
};
struct Gelu {
  template <Precision kPrecision>
  static Vec of(Vec a) {
    return gelu_tanh<kPrecision>(a);
  }
  template <Precision kPrecision>
  static Vec slope(Vec a) {
    return gelu_tanh_slope<kPrecision>(a);
  }
};

template <class T>
constexpr Precision kPrecisionOf = sizeof(T) == 2 ? Precision::bf16 : Precision::full;

/// body(row) on each thread's rows.
template <class Body>
void for_each_row(int threads, Rows rows, bool is_streamed, Body body) {
  parallel_ranges(split_rows(threads, rows.count, rows.width), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) body(row);
    end_streaming(is_streamed);
  });
}

template <class Gate>
void gated_forward(int threads, Data y, Data x, Rows rows) {
  with_type(y, [&](auto tag) {
    using T = decltype(tag);
    const bool is_streamed = streams<T>(y, rows.count * rows.width, x, x);
    for_each_row(threads, rows, is_streamed, [=, width = rows.width](std::int64_t row) {
      const T *a = elements<const T>(x) + row * 2 * width, *b = a + width;
      store_range<kOwnOrder<T>>(elements<T>(y) + row * width, 0, width, is_streamed, [=](std::int64_t i, auto part) {
        fetch_ahead(a + i, part);
        fetch_ahead(b + i, part);
        return each([](Vec v) { return Gate::template of<kPrecisionOf<T>>(v); }, load(a + i, part)) * load(b + i, part);
      });
    });
  });
}

/// The halves of a row of dx one after the other: what the second reads is in the first cache by then.
template <class Gate>
void gated_backward(int threads, Data dx, Data dy, Data x, Rows rows) {
  with_type(dx, [&](auto tag) {
    using T = decltype(tag);
    const bool is_streamed = streams<T>(dx, 2 * rows.count * rows.width, dy, x);
    for_each_row(threads, rows, is_streamed, [=, width = rows.width](std::int64_t row) {
      const T *a = elements<const T>(x) + row * 2 * width, *b = a + width, *g = elements<const T>(dy) + row * width;
      T* const out = elements<T>(dx) + row * 2 * width;
      store_range<kOwnOrder<T>>(out, 0, width, is_streamed, [=](std::int64_t i, auto part) {
        fetch_ahead(a + i, part);
        fetch_ahead(b + i, part);
        fetch_ahead(g + i, part);
        return load(g + i, part) * load(b + i, part) *
               each([](Vec v) { return Gate::template slope<kPrecisionOf<T>>(v); }, load(a + i, part));
      });
      store_range<kOwnOrder<T>>(out + width, 0, width, is_streamed, [=](std::int64_t i, auto part) {
        return load(g + i, part) * each([](Vec v) { return Gate::template of<kPrecisionOf<T>>(v); }, load(a + i, part));
      });
    });
  });
}

}  // namespace

void fill_swiglu(Isa& isa) {
  isa.swiglu_forward = gated_forward<Silu>;
  isa.swiglu_backward = gated_backward<Silu>;
  isa.geglu_forward = gated_forward<Gelu>;
  isa.geglu_backward = gated_backward<Gelu>;
}

}  // namespace zs::cpu::ZS_ISA
#else
#include "kernels/checks.h"
#include "kernels/cpu/host.h"
#include "kernels/families.h"

namespace zs::cpu {
namespace {

template <auto kKernel>
void forward(ExecContext& ctx, Buffer y, Buffer x, std::int64_t width) {
  (isa().*kKernel)(ctx.threads(), data_of(y), data_of(x), {checks::gated(y, x, width), width});
}

template <auto kKernel>
void backward(ExecContext& ctx, Buffer dx, Buffer dy, Buffer x, std::int64_t width) {
  checks::same_as("dx", dx, x);
  (isa().*kKernel)(ctx.threads(), data_of(dx), data_of(dy), data_of(x), {checks::gated(dy, x, width), width});
}

}  // namespace

void fill_swiglu(KernelTable& table) {
  table.swiglu_forward = forward<&Isa::swiglu_forward>;
  table.swiglu_backward = backward<&Isa::swiglu_backward>;
  table.geglu_forward = forward<&Isa::geglu_forward>;
  table.geglu_backward = backward<&Isa::geglu_backward>;
}

}  // namespace zs::cpu
#endif
