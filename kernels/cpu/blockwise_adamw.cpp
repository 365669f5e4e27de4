#if defined(ZS_ISA)
#include "kernels/cpu/isa_families.h"
#include "kernels/cpu/vec.h"
#include "kernels/dynamic_code.h"

/// AdamW with moments of 8 bits.
namespace zs::cpu::ZS_ISA {
namespace {

constexpr float kLargestFloat = 3.40282347e38f;

/// Values of codes, and a short way from a number to its code: the upper bits of an f32 have a bucket, in which at most
/// one middle lies, so that the code is that of the bucket's least number or the next.
template <bool kIsSigned>
struct CodeTable {
  // A bucket for each sign, exponent and so many bits of the mantissa, from below the first middle to 1.
  static constexpr int kShift = kIsSigned ? 17 : 16, kFirst = (127 - 24) << (23 - kShift),
                       kBuckets = (127 << (23 - kShift)) - kFirst + 1;
  float values[kCodes], middles[kCodes];
  std::int32_t codes[kIsSigned ? 2 * kBuckets : kBuckets];

  static constexpr std::int32_t bucket_of(float x) {
    const std::int32_t bits = __builtin_bit_cast(std::int32_t, x);
    std::int32_t bucket = ((bits & 0x7fffffff) >> kShift) - kFirst;
    bucket = bucket < 0 ? 0 : bucket;
    bucket = bucket < kBuckets ? bucket : kBuckets - 1;
    return kIsSigned && bits < 0 ? bucket + kBuckets : bucket;
  }
  /// nearest_code
  std::int32_t code_of(float x) const {
    const std::int32_t code = codes[bucket_of(x)];
    return x == x ? code + (x > middles[code] ? 1 : 0) : 0;
  }
};
template <bool kIsSigned>
constexpr CodeTable<kIsSigned> code_table() {
  using Table = CodeTable<kIsSigned>;
  Table table{};
  const DynamicCodes codes = dynamic_codes(kIsSigned);
  for (int i = 0; i < kCodes; ++i) table.values[i] = codes.values[i];
  for (int i = 0; i + 1 < kCodes; ++i) table.middles[i] = 0.5f * (codes.values[i] + codes.values[i + 1]);
  table.middles[kCodes - 1] = kLargestFloat;
  // Buckets as numbers ascend: the negative ones from the last on, then the others.
  for (int place = kIsSigned ? -Table::kBuckets : 0, code = 0; place < Table::kBuckets; ++place) {
    const int bucket = place < 0 ? Table::kBuckets - 1 - place : place;
    table.codes[bucket] = code;
    if (code + 1 < kCodes && Table::bucket_of(table.middles[code]) == bucket) ++code;
  }
  return table;
}
constexpr CodeTable<true> kSigned = code_table<true>();
constexpr CodeTable<false> kUnsigned = code_table<false>();
static_assert(kSigned.codes[kSigned.bucket_of(1.0f)] == kCodes - 1, "a bucket with two middles");
static_assert(kUnsigned.codes[kUnsigned.bucket_of(1.0f)] == kCodes - 1, "a bucket with two middles");

/// visit(begin, end, block) of the part's elements, as they lie there, of each of its blocks [first, last).
template <class Visit>
inline void for_each_of_blocks(const BlockwiseAdamW& a, std::int64_t n, std::int64_t first, std::int64_t last,
                               Visit visit) {
  const ElementRuns part = a.part;
  const std::int64_t runs = n / part.run;
  for (std::int64_t block = first; block < last; ++block) {
    const std::int64_t low = (first_block_of(part) + block) * kCodeBlockElems - part.first,
                       high = low + kCodeBlockElems;  // from the part's first element, in the parameter
    for (std::int64_t run = runs > 1 ? max_of(0, low) / part.stride : 0; run < runs; ++run) {
      const std::int64_t begins = runs > 1 ? run * part.stride : 0;
      if (begins >= high) break;
      const std::int64_t from = max_of(low, begins), to = min_of(high, begins + part.run);
      if (from < to) visit(run * part.run + from - begins, run * part.run + to - begins, block);
    }
  }
}

inline Split split_blocks(int threads, std::int64_t blocks) { return {threads, blocks, 16, 1}; }

void blockwise_adamw_scales(int threads, const BlockwiseAdamW& args, std::int64_t n) {
  const BlockwiseAdamW a = args;
  const std::int64_t blocks = blocks_of(a.part, n);
  parallel_ranges(split_blocks(threads, blocks), [=](std::int64_t first, std::int64_t last) {
    for (std::int64_t block = first; block < last; ++block) a.new_m_scales[block] = a.new_v_scales[block] = 0;
    for_each_of_blocks(a, n, first, last, [&](std::int64_t begin, std::int64_t end, std::int64_t block) {
      const float m_scale = a.m_scales[block], v_scale = a.v_scales[block];
      float most_m = a.new_m_scales[block], most_v = a.new_v_scales[block];
#pragma omp simd reduction(max : most_m, most_v)
      for (std::int64_t i = begin; i < end; ++i) {
        float m = kSigned.values[a.m[i]] * m_scale, v = kUnsigned.values[a.v[i]] * v_scale;
        adamw_moments(a.options, a.scalars, a.grad[i], m, v);
        const float magnitude = m < 0 ? -m : m;
        most_m = magnitude > most_m ? magnitude : most_m;
        most_v = v > most_v ? v : most_v;
      }
      a.new_m_scales[block] = most_m < kLargestFloat ? most_m : kLargestFloat;
      a.new_v_scales[block] = most_v < kLargestFloat ? most_v : kLargestFloat;
    });
  });
}

void blockwise_adamw(int threads, const BlockwiseAdamW& args, std::int64_t n) {
  const BlockwiseAdamW a = args;
  parallel_ranges(split_blocks(threads, blocks_of(a.part, n)), [=](std::int64_t first, std::int64_t last) {
    for_each_of_blocks(a, n, first, last, [&](std::int64_t begin, std::int64_t end, std::int64_t block) {
      const float m_scale = a.m_scales[block], v_scale = a.v_scales[block];
      const float new_m_scale = a.new_m_scales[block], new_v_scale = a.new_v_scales[block];
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) {
        float m = kSigned.values[a.m[i]] * m_scale, v = kUnsigned.values[a.v[i]] * v_scale;
        a.master[i] = updated<true>(a.options, a.scalars, a.weight_decay, a.master[i], a.grad[i], m, v);
        a.m[i] = static_cast<std::uint8_t>(kSigned.code_of(m / new_m_scale));
        const float share = v / new_v_scale;
        const std::int32_t code = kUnsigned.code_of(share);
        a.v[i] = static_cast<std::uint8_t>(code == 0 && share > 0.0f ? 1 : code);  // nearest_code_above_zero
      }
      if (a.copy == nullptr) return;
      for (std::int64_t i = begin; i < end; ++i) a.copy[i] = from_float<Bf16>(a.master[i]);
    });
  });
}

}  // namespace

void fill_blockwise_adamw(Isa& isa) {
  isa.blockwise_adamw_scales = blockwise_adamw_scales;
  isa.blockwise_adamw = blockwise_adamw;
}

}  // namespace zs::cpu::ZS_ISA
#else
#include "kernels/checks.h"
#include "kernels/cpu/host.h"
#include "kernels/families.h"

namespace zs::cpu {
namespace {

BlockwiseAdamW loop_args(const zs::BlockwiseAdamW& of, const AdamWOptions& options) {
  checks::blockwise_adamw(of);
  return {.master = floats_of(of.master),
          .copy = of.copy.empty() ? nullptr : static_cast<std::uint16_t*>(data_of(of.copy).address),
          .grad = floats_of(of.grad),
          .m = static_cast<std::uint8_t*>(of.m.data),
          .v = static_cast<std::uint8_t*>(of.v.data),
          .m_scales = floats_of(of.m_scales),
          .v_scales = floats_of(of.v_scales),
          .new_m_scales = floats_of(of.new_m_scales),
          .new_v_scales = floats_of(of.new_v_scales),
          .part = of.part,
          .scalars = *reinterpret_cast<const StepScalars*>(of.scalars.as<float>()),
          .weight_decay = of.weight_decay,
          .options = options};
}

void blockwise_adamw_scales(ExecContext& ctx, const zs::BlockwiseAdamW& of, const AdamWOptions& options) {
  const BlockwiseAdamW args = loop_args(of, options);
  if (args.scalars.skip == 0.0f) return isa().blockwise_adamw_scales(ctx.threads(), args, of.master.elems);
  for (std::int64_t i = 0; i < of.m_scales.elems; ++i) {
    args.new_m_scales[i] = args.m_scales[i];
    args.new_v_scales[i] = args.v_scales[i];
  }
}

void blockwise_adamw(ExecContext& ctx, const zs::BlockwiseAdamW& of, const AdamWOptions& options) {
  const BlockwiseAdamW args = loop_args(of, options);
  if (args.scalars.skip == 0.0f) isa().blockwise_adamw(ctx.threads(), args, of.master.elems);
}

}  // namespace

void fill_blockwise_adamw(KernelTable& table) {
  table.blockwise_adamw_scales = blockwise_adamw_scales;
  table.blockwise_adamw = blockwise_adamw;
}

}  // namespace zs::cpu
#endif
