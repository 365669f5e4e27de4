#pragma once

#include "kernels/checks.h"

/// Checks of the arguments of general ops' kernels.
namespace zs::checks {

/// The elements that lie in the buffer, up to the last one of the shape.
inline void strided(const char* what, const Strided& operand, const Shape& shape) {
  std::int64_t last = 0;
  for (int d = 0; d < shape.rank(); ++d) last += (shape[d] - 1) * operand.strides[static_cast<std::size_t>(d)];
  ZS_CHECK(last < operand.buffer.elems, "{}: element {} of {}", what, last, operand.buffer.elems);
  const DType dtype = operand.buffer.dtype;
  ZS_CHECK(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::i32, "{} is {}, expected f32, bf16 or i32",
           what, name_of(dtype));
}

/// Checks a map, which is not of an empty shape.
inline void map(const Map& map) {
  ZS_CHECK(map.shape.rank() > 0, "a map of no dim");
  strided("out", map.out, map.shape);
  for (const Strided& in : map.in)
    if (!in.buffer.empty()) strided("in", in, map.shape);
  if (!is_of_integers(map.op)) return;
  for (const Strided& in : map.in)
    ZS_CHECK(in.buffer.empty() || in.buffer.dtype == DType::i32, "{} for integers", name_of(in.buffer.dtype));
}

/// Checks a reduction, which keeps something.
inline void reduce(const Reduce& reduce) {
  ZS_CHECK(reduce.kept.rank() > 0 && reduce.reduced.rank() > 0, "a reduction over {} dims for {}",
           reduce.reduced.rank(), reduce.kept.rank());
  const bool is_index = reduce.op == ReduceKind::argmax;
  ZS_CHECK(reduce.out.elems == reduce.kept.numel() && (reduce.out.dtype == DType::i32) == is_index,
           "{} {} for {} reductions", reduce.out.elems, name_of(reduce.out.dtype), reduce.kept.numel());
  ZS_CHECK(reduce.op == ReduceKind::sum || reduce.reduced.numel() > 0, "the largest of no elements");
  std::int64_t last = 0;
  for (int d = 0; d < reduce.kept.rank(); ++d)
    last += (reduce.kept[d] - 1) * reduce.kept_strides[static_cast<std::size_t>(d)];
  for (int d = 0; d < reduce.reduced.rank(); ++d)
    last += (reduce.reduced[d] - 1) * reduce.reduced_strides[static_cast<std::size_t>(d)];
  ZS_CHECK(reduce.reduced.numel() == 0 || last < reduce.in.elems, "in: element {} of {}", last, reduce.in.elems);
}

inline void lines(const Buffer& x, const Buffer& y, const Buffer& ids, const LineDims& d) {
  ZS_CHECK(ids.dtype == DType::i32 && ids.elems == (d.each_its_own ? y.elems : d.count), "{} {} as ids of {} lines",
           ids.elems, name_of(ids.dtype), d.count);
  ZS_CHECK(x.elems == d.outer * d.lines * d.inner && y.elems == d.outer * d.count * d.inner,
           "x {}, y {} elements for {} x {} of {} x {}", x.elems, y.elems, d.outer, d.count, d.lines, d.inner);
}

/// Lines along which a kernel goes.
inline void whole_lines(const Buffer& y, const Buffer& x, const LineDims& d) {
  ZS_CHECK(x.dtype == DType::f32 || x.dtype == DType::bf16 || x.dtype == DType::i32, "lines of {}", name_of(x.dtype));
  ZS_CHECK(x.elems == d.outer * d.lines * d.inner && y.elems == d.outer * d.count * d.inner && d.count <= d.lines,
           "x {}, y {} elements for {} x {} of {} x {}", x.elems, y.elems, d.outer, d.count, d.lines, d.inner);
}

inline std::int64_t dropout(const Buffer& out, const Buffer& in, const DropoutMask& mask) {
  ZS_CHECK(mask.probability >= 0 && mask.probability < 1 && mask.first >= 0, "probability {}, first {}",
           mask.probability, mask.first);
  return alike(out, in, in);
}

}  // namespace zs::checks
