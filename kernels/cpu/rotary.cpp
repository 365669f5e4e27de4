#if defined(ZS_ISA)
#include "kernels/cpu/isa_families.h"
#include "kernels/cpu/vec_pair.h"
#include "kernels/rotary_angle.h"

namespace zs::cpu::ZS_ISA {
namespace {

/// One thread's, for the position that it is at.
struct Angles {
  double* turns;           // (head_dim / 2): of one position
  float *cosines, *sines;  // (head_dim / 2), laid out as a head's halves are
  std::int64_t pairs;
};

Angles angles_of(const Rotary& args) {
  const std::int64_t pairs = args.dims.head_dim / 2;
  float* const mine = args.scratch + omp_get_thread_num() * rotary_scratch_elems(args.dims);
  const Angles angles{reinterpret_cast<double*>(mine), mine + 2 * pairs, mine + 3 * pairs, pairs};
  for (std::int64_t i = 0; i < pairs; ++i) angles.turns[i] = scaled_turns(rotary_turns(args.ratio, i), i, args.scaling);
  return angles;
}

template <Order kOrder>
void turn_to(const Angles& angles, std::int64_t position, bool is_inverse, float amplitude) {
  const double steps = static_cast<double>(is_inverse ? -position : position);
  double* const turns = angles.turns;
  float *const cosines = angles.cosines, *const sines = angles.sines;
#pragma omp simd
  for (std::int64_t i = 0; i < angles.pairs; ++i) {
    const Rotation rotation = rotation_by(steps * turns[i]);
    cosines[i] = amplitude * rotation.cosine;
    sines[i] = amplitude * rotation.sine;
  }
  if (kOrder == Order::in_line) return;
  lay_out<kOrder>(cosines, cosines, angles.pairs);
  lay_out<kOrder>(sines, sines, angles.pairs);
}

/// (x, y) := (x cos - y sin, y cos + x sin), x the first half of the head and y the second.
template <class T>
void turn_head(T* out, const T* in, const Angles& angles) {
  const float *const cosines = angles.cosines, *const sines = angles.sines;
  const std::int64_t pairs = angles.pairs;
  for_each_pair<kOwnOrder<T>>(0, pairs, [=](std::int64_t i, auto part) {
    const auto x = load(in + i, part), y = load(in + pairs + i, part);
    const auto cosine = load(cosines + i, part), sine = load(sines + i, part);
    store(out + i, x * cosine - y * sine, part);
    store(out + pairs + i, y * cosine + x * sine, part);
  });
}

/// Rotates position by position, so that every angle is computed once.
void rotary(int threads, const Rotary& args) {
  const AttentionDims dims = args.dims;
  const std::int64_t width = qkv_width_of(dims), kept = kv_heads_of(dims) * dims.head_dim, turned = width - kept;
  with_type(args.out, [&](auto tag) {
    using T = decltype(tag);
    parallel_ranges(split_rows(threads, dims.time, dims.batch * width), [=](std::int64_t begin, std::int64_t end) {
      const Angles angles = angles_of(args);
      for (std::int64_t t = begin; t < end; ++t) {
        turn_to<kOwnOrder<T>>(angles, args.first + t, args.is_inverse, args.scaling.amplitude);
        for (std::int64_t b = 0; b < dims.batch; ++b) {
          const T* const in = elements<const T>(args.in) + (b * dims.time + t) * width;
          T* const out = elements<T>(args.out) + (b * dims.time + t) * width;
          for (std::int64_t head = 0; head < turned; head += dims.head_dim) turn_head(out + head, in + head, angles);
          if (out != in) __builtin_memcpy(out + turned, in + turned, static_cast<std::size_t>(kept) * sizeof(T));
        }
      }
    });
  });
}

}  // namespace

void fill_rotary(Isa& isa) { isa.rotary = rotary; }

}  // namespace zs::cpu::ZS_ISA
#else
#include "kernels/checks.h"
#include "kernels/cpu/host.h"
#include "kernels/families.h"

namespace zs::cpu {
namespace {

std::int64_t rotary_scratch(int threads, const AttentionDims& dims) {
  return kFloat * threads * rotary_scratch_elems(dims);
}

void rotary(ExecContext& ctx, Buffer out, Buffer in, const AttentionDims& dims, const RotaryOptions& options) {
  isa().rotary(ctx.threads(), {.out = data_of(out),
                               .in = data_of(in),
                               .dims = dims,
                               .ratio = checks::rotary(out, in, dims, options),
                               .is_inverse = options.is_inverse,
                               .scratch = scratch(ctx, rotary_scratch(ctx.threads(), dims)),
                               .scaling = options.scaling,
                               .first = options.first});
}

}  // namespace

void fill_rotary(KernelTable& table) {
  table.scratch.rotary = rotary_scratch;
  table.rotary = rotary;
}

}  // namespace zs::cpu
#endif
