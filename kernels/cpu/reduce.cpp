#if defined(ZS_ISA)
#include "kernels/cpu/isa_families.h"
#include "kernels/cpu/vec.h"

namespace zs::cpu::ZS_ISA {
namespace {

/// Outputs of one line that are reduced together, and sums of one output that are carried apart: memory is read in
/// lines either way.
constexpr std::int64_t kTogether = 64, kApart = 8;

std::int64_t offset_of(const ReduceDims& dims, std::int64_t index) {
  std::int64_t offset = 0;
  for (int d = dims.dims - 1; d >= 0; index /= dims.sizes[d], --d) offset += index % dims.sizes[d] * dims.strides[d];
  return offset;
}

/// Into `count` accumulators, `stride` elements apart.
template <class Accumulator, class T>
void reduce_lines(Accumulator* out, const ReduceLoop& args, const T* in, std::int64_t count, std::int64_t stride) {
  const std::int64_t line = args.reduced.sizes[args.reduced.dims - 1],
                     step = args.reduced.strides[args.reduced.dims - 1];
  for (std::int64_t first = 0; first < args.reduced.elems; first += line) {
    const T* x = in + offset_of(args.reduced, first);
    for (std::int64_t r = 0; r < line; ++r, x += step)
      for (std::int64_t k = 0; k < count; ++k) take(out[k], to_float(x[k * stride]), first + r);
  }
}

template <class Accumulator, class T>
Accumulator reduce_one(const ReduceLoop& args, const T* in) {
  const std::int64_t line = args.reduced.sizes[args.reduced.dims - 1],
                     step = args.reduced.strides[args.reduced.dims - 1];
  Accumulator apart[kApart];
  for (Accumulator& accumulator : apart) clear(accumulator);
  for (std::int64_t first = 0; first < args.reduced.elems; first += line) {
    const T* x = in + offset_of(args.reduced, first);
    std::int64_t r = 0;
    for (; r + kApart <= line; r += kApart)
      for (std::int64_t k = 0; k < kApart; ++k) take(apart[k], to_float(x[(r + k) * step]), first + r + k);
    for (; r < line; ++r) take(apart[r % kApart], to_float(x[r * step]), first + r);
  }
  for (std::int64_t k = 1; k < kApart; ++k) merge(apart[0], apart[k]);
  return apart[0];
}

void store_float(const ReduceLoop& args, std::int64_t at, float value) {
  if (args.out_dtype == DType::f32) static_cast<float*>(args.out)[at] = value;
  if (args.out_dtype == DType::bf16) static_cast<Bf16*>(args.out)[at] = from_float<Bf16>(value);
}
void store_result(const ReduceLoop& args, std::int64_t at, const SumAccumulator& sum) {
  store_float(args, at, static_cast<float>(sum.value * static_cast<double>(args.factor)));
}
void store_result(const ReduceLoop& args, std::int64_t at, const MaxAccumulator& max) {
  if (args.op == ReduceKind::max) return store_float(args, at, max.value);
  static_cast<std::int32_t*>(args.out)[at] = static_cast<std::int32_t>(max.at);
}

/// Outputs [begin, end).
template <class Accumulator, class T>
void reduce_range(const ReduceLoop& args, std::int64_t begin, std::int64_t end) {
  const int inner = args.kept.dims - 1;
  const std::int64_t width = args.kept.sizes[inner], stride = args.kept.strides[inner];
  const bool is_by_lines = stride == 1 && width > 1;
  for (std::int64_t at = begin; at < end;) {
    const T* in = elements<const T>(args.in) + offset_of(args.kept, at);
    if (!is_by_lines) {
      store_result(args, at, reduce_one<Accumulator>(args, in));
      ++at;
      continue;
    }
    const std::int64_t count = min_of(kTogether, min_of(width - at % width, end - at));
    Accumulator results[kTogether];
    for (Accumulator& accumulator : results) clear(accumulator);
    reduce_lines(results, args, in, count, stride);
    for (std::int64_t k = 0; k < count; ++k) store_result(args, at + k, results[k]);
    at += count;
  }
}

void reduce(int threads, const ReduceLoop& args) {
  with_type(args.in, [&](auto tag) {
    using T = decltype(tag);
    parallel_ranges(split_rows(threads, args.kept.elems, args.reduced.elems),
                    [args](std::int64_t begin, std::int64_t end) {
                      if (args.op == ReduceKind::sum) {
                        reduce_range<SumAccumulator, T>(args, begin, end);
                      } else {
                        reduce_range<MaxAccumulator, T>(args, begin, end);
                      }
                    });
  });
}

}  // namespace

void fill_reduce(Isa& isa) { isa.reduce = reduce; }

}  // namespace zs::cpu::ZS_ISA
#else
#include "kernels/cpu/host.h"
#include "kernels/families.h"
#include "kernels/general_checks.h"

namespace zs::cpu {
namespace {

ReduceDims dims_of(const Shape& shape, const std::array<std::int64_t, Shape::kMaxDims>& strides) {
  ReduceDims dims{.dims = shape.rank(), .sizes = {}, .strides = {}, .elems = shape.numel()};
  for (int d = 0; d < shape.rank(); ++d) {
    dims.sizes[d] = shape[d];
    dims.strides[d] = strides[static_cast<std::size_t>(d)];
  }
  return dims;
}

void reduce(ExecContext& ctx, const Reduce& reduce) {
  if (reduce.kept.numel() == 0) return;
  checks::reduce(reduce);
  ZS_CHECK(reduce.out.device == DeviceKind::cpu, "a CPU kernel got a buffer of device {}", name_of(reduce.out.device));
  isa().reduce(ctx.threads(), {.op = reduce.op,
                               .out = reduce.out.data,
                               .out_dtype = reduce.out.dtype,
                               .in = data_of(reduce.in),
                               .kept = dims_of(reduce.kept, reduce.kept_strides),
                               .reduced = dims_of(reduce.reduced, reduce.reduced_strides),
                               .factor = reduce.factor});
}

}  // namespace

void fill_reduce(KernelTable& table) { table.reduce = reduce; }

}  // namespace zs::cpu
#endif
