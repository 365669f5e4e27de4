#if defined(ZS_ISA)
#include "kernels/cpu/isa_families.h"
#include "kernels/cpu/vec.h"
#include "kernels/dropout_random.h"

namespace zs::cpu::ZS_ISA {
namespace {

/// Elements that are computed together: each operand is brought into a row of floats first, whatever its dtype and
/// strides are.
constexpr std::int64_t kMapped = 256;

/// visit(at, offset, run) for the elements [begin, begin + count) of the shape: run elements from `at` after begin on
/// lie in one line of the innermost dim, the first one at this offset of the operand.
template <class Visit>
void for_each_line(const MapLoop& args, const MapOperand& operand, std::int64_t begin, std::int64_t count,
                   Visit visit) {
  const int inner = args.dims - 1;
  for (std::int64_t at = 0; at < count;) {
    std::int64_t rest = (begin + at) / args.sizes[inner];
    const std::int64_t column = (begin + at) % args.sizes[inner], run = min_of(args.sizes[inner] - column, count - at);
    std::int64_t offset = column * operand.strides[inner];
    for (int d = inner - 1; d >= 0; rest /= args.sizes[d], --d) offset += rest % args.sizes[d] * operand.strides[d];
    visit(at, offset, run);
    at += run;
  }
}

inline float number(float x) { return x; }
inline float number(Bf16 x) { return to_float(x); }
inline float number(std::int32_t x) { return static_cast<float>(x); }

template <class T>
void load_line(float* to, const T* from, std::int64_t stride, std::int64_t run) {
  if (stride == 1) {
    for (std::int64_t i = 0; i < run; ++i) to[i] = number(from[i]);
  } else {
    for (std::int64_t i = 0; i < run; ++i) to[i] = number(from[i * stride]);
  }
}

void load_elements(float* to, const MapLoop& args, const MapOperand& operand, std::int64_t begin, std::int64_t count) {
  if (operand.address == nullptr) return;
  const std::int64_t stride = operand.strides[args.dims - 1];
  for_each_line(args, operand, begin, count, [&](std::int64_t at, std::int64_t offset, std::int64_t run) {
    if (operand.dtype == DType::f32)
      return load_line(to + at, static_cast<const float*>(operand.address) + offset, stride, run);
    if (operand.dtype == DType::bf16)
      return load_line(to + at, static_cast<const Bf16*>(operand.address) + offset, stride, run);
    load_line(to + at, static_cast<const std::int32_t*>(operand.address) + offset, stride, run);
  });
}

void store_elements(const MapLoop& args, const float* from, std::int64_t begin, std::int64_t count) {
  const std::int64_t stride = args.out.strides[args.dims - 1];
  for_each_line(args, args.out, begin, count, [&](std::int64_t at, std::int64_t offset, std::int64_t run) {
    const float* x = from + at;
    if (args.out.dtype == DType::f32) {
      float* out = static_cast<float*>(args.out.address) + offset;
      for (std::int64_t i = 0; i < run; ++i) out[i * stride] = x[i];
    } else if (args.out.dtype == DType::bf16) {
      Bf16* out = static_cast<Bf16*>(args.out.address) + offset;
      for (std::int64_t i = 0; i < run; ++i) out[i * stride] = from_float<Bf16>(x[i]);
    } else {
      std::int32_t* out = static_cast<std::int32_t*>(args.out.address) + offset;
      for (std::int64_t i = 0; i < run; ++i) out[i * stride] = static_cast<std::int32_t>(x[i]);
    }
  });
}

void map(int threads, const MapLoop& args) {
  with_map_op(args.op, [&](auto tag) {
    parallel_ranges(split_elements(threads, args.elems), [args](std::int64_t begin, std::int64_t end) {
      float rows[3][kMapped];
      for (int k = 0; k < 3; ++k)
        for (std::int64_t i = 0; i < kMapped; ++i) rows[k][i] = args.in[k].constant;
      for (std::int64_t first = begin; first < end; first += kMapped) {
        const std::int64_t count = min_of(kMapped, end - first);
        for (int k = 0; k < 3; ++k) load_elements(rows[k], args, args.in[k], first, count);
        float results[kMapped];
        for (std::int64_t i = 0; i < kMapped; ++i)
          results[i] = map_value<decltype(tag)::value>(rows[0][i], rows[1][i], rows[2][i]);
        store_elements(args, results, first, count);
      }
    });
  });
}

void dropout(int threads, Data out, Data in, std::int64_t n, const DropoutMask& mask) {
  const std::uint32_t threshold = dropout_threshold(mask.probability);
  const float factor = 1.0f / (1.0f - mask.probability);
  with_type(out, [&](auto tag) {
    using T = decltype(tag);
    T* const y = elements<T>(out);
    const T* const x = elements<const T>(in);
    parallel_ranges(split_elements(threads, n), [=, key = mask.key, from = mask.first](std::int64_t begin,
                                                                                       std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        y[i] = is_kept(key, static_cast<std::uint64_t>(from + i), threshold) ? from_float<T>(to_float(x[i]) * factor)
                                                                             : T{};
    });
  });
}

}  // namespace

void fill_map(Isa& isa) {
  isa.map = map;
  isa.dropout = dropout;
}

}  // namespace zs::cpu::ZS_ISA
#else
#include "kernels/cpu/host.h"
#include "kernels/families.h"
#include "kernels/general_checks.h"

namespace zs::cpu {
namespace {

MapOperand operand_of(const Strided& operand, int dims, float constant) {
  MapOperand result{operand.buffer.empty() ? nullptr : operand.buffer.data, operand.buffer.dtype, {}, constant};
  ZS_CHECK(operand.buffer.device == DeviceKind::cpu, "a CPU kernel got a buffer of device {}",
           name_of(operand.buffer.device));
  for (int d = 0; d < dims; ++d) result.strides[d] = operand.strides[static_cast<std::size_t>(d)];
  return result;
}

/// Looks at each divisor once, beside the first number that it divides.
void check_divisors(const Map& map) {
  const Strided &number = map.in[0], &divisor = map.in[1];
  const auto integer = [](const Strided& in, float constant, std::int64_t at) {
    return in.buffer.empty() ? integer_of(constant) : in.buffer.as<std::int32_t>()[at];
  };
  const auto has = [&](int d) { return !divisor.buffer.empty() && divisor.strides[static_cast<std::size_t>(d)] != 0; };
  std::int64_t divisors = 1;
  for (int d = 0; d < map.shape.rank(); ++d) divisors *= has(d) ? map.shape[d] : 1;
  for (std::int64_t i = 0; i < divisors; ++i) {
    std::int64_t rest = i, at = 0, beside = 0;
    for (int d = map.shape.rank() - 1; d >= 0; --d) {
      if (!has(d)) continue;
      at += rest % map.shape[d] * divisor.strides[static_cast<std::size_t>(d)];
      beside += rest % map.shape[d] * number.strides[static_cast<std::size_t>(d)];
      rest /= map.shape[d];
    }
    if (integer(divisor, map.constants[1], at) == 0)
      throw UsageError(fmt::format("{} divided by 0", integer(number, map.constants[0], beside)),
                       "an op of i32 tensors has a divisor of 0");
  }
}

void map(ExecContext& ctx, const Map& map) {
  if (map.shape.numel() == 0) return;
  checks::map(map);
  const int dims = map.shape.rank();
  MapLoop args{.op = map.op,
               .dims = dims,
               .sizes = {},
               .elems = map.shape.numel(),
               .out = operand_of(map.out, dims, 0),
               .in = {}};
  for (int d = 0; d < dims; ++d) args.sizes[d] = map.shape[d];
  for (std::size_t k = 0; k < map.in.size(); ++k) args.in[k] = operand_of(map.in[k], dims, map.constants[k]);
  if (keeps_bits(map)) args.out.dtype = args.in[0].dtype = args.in[1].dtype = args.in[2].dtype = DType::f32;
  if (map.op == MapOp::floor_div || map.op == MapOp::remainder) check_divisors(map);
  isa().map(ctx.threads(), args);
}

void dropout(ExecContext& ctx, Buffer out, Buffer in, const DropoutMask& mask) {
  isa().dropout(ctx.threads(), data_of(out), data_of(in), checks::dropout(out, in, mask), mask);
}

}  // namespace

void fill_map(KernelTable& table) {
  table.map = map;
  table.dropout = dropout;
}

}  // namespace zs::cpu
#endif
