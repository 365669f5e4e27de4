#include "comm/ordered_reduce.h"

#include <algorithm>
#include <cstring>

#include "comm/ordered_reduce_loops.h"
#include "runtime/base/cpu_isa.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace zs {
namespace ordered_reduce_loops {
namespace {

/// AVX-512 where the processor has tiles, too: sums have none.
const Isa& loops_of(CpuIsa isa) {
#if defined(__x86_64__)
  if (isa == CpuIsa::amx || isa == CpuIsa::avx512) return avx512::kIsa;
  if (isa == CpuIsa::avx2) return avx2::kIsa;
#endif
  return baseline::kIsa;
}

}  // namespace

std::vector<const Isa*> available() {
  std::vector<const Isa*> list;
  for (const CpuIsa isa : available_cpu_isas())
    if (list.empty() || list.back() != &loops_of(isa)) list.push_back(&loops_of(isa));
  return list;
}

}  // namespace ordered_reduce_loops

void ordered_reduce(const OrderedReduceArgs& args) {
  static const ordered_reduce_loops::Isa& loops = ordered_reduce_loops::loops_of(chosen_cpu_isa());
  ZS_CHECK(!args.parts.empty(), "a sum of no parts");
  const bool is_done = loops.run({.parts = args.parts.data(),
                                  .count = args.parts.size(),
                                  .part_dtype = args.part_dtype,
                                  .start = args.start,
                                  .out = args.out,
                                  .out_dtype = args.out_dtype,
                                  .elems = args.elems,
                                  .op = args.op});
  ZS_CHECK(is_done, "no sum of {} into {}", name_of(args.part_dtype), name_of(args.out_dtype));
}

void stream_bytes(void* to, const void* from, std::int64_t bytes) {
#if defined(__SSE2__)
  auto* out = static_cast<char*>(to);
  const auto* in = static_cast<const char*>(from);
  // kAhead: distance at which memory is asked for ahead, as in ordered_reduce_loops.cpp.
  constexpr std::int64_t kLine = 64, kAhead = 16 * kLine;
  const std::int64_t head =
      std::min<std::int64_t>(bytes, static_cast<std::int64_t>(-reinterpret_cast<std::uintptr_t>(to) % kLine));
  copy_bytes(out, in, head);
  std::int64_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    _mm_prefetch(in + at + kAhead, _MM_HINT_T0);
    for (std::int64_t i = at; i < at + kLine; i += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(out + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i)));
  }
  _mm_sfence();  // others may look as soon as a counter says so
  copy_bytes(out + at, in + at, bytes - at);
#else
  copy_bytes(to, from, bytes);
#endif
}

void copy_bytes(void* to, const void* from, std::int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

}  // namespace zs
