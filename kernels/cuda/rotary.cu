#include "kernels/cuda/warp.h"
#include "kernels/rotary_angle.h"

namespace zs::cuda {
namespace {

/// A pack of pairs (x, y) := (x cos - y sin, y cos + x sin); x from `at` on, y `pairs` elements after it.
template <class P>
__device__ inline void turn_pack(const RotaryArgs& args, std::int64_t at, std::int64_t end, std::int64_t pairs,
                                 const Rotation* rotations) {
  float x[kRowElems], y[kRowElems];
  P::load(args.in, at, end, x);
  P::load(args.in, at + pairs, end + pairs, y);
  for (int i = 0; i < kRowElems; ++i) {
    if (i >= end - at) break;
    const Rotation by = rotations[i];
    const float turned = x[i] * by.cosine - y[i] * by.sine;
    y[i] = y[i] * by.cosine + x[i] * by.sine;
    x[i] = turned;
  }
  P::store(args.out, at, end, x);
  P::store(args.out, at + pairs, end + pairs, y);
}

/// One block a token: it computes the angles of its position once, for all heads. Dynamic shared memory: a Rotation a
/// pair.
template <class P>
__device__ void rotary(const RotaryArgs& args) {
  Rotation* const rotations = reinterpret_cast<Rotation*>(dynamic_shared());
  const std::int64_t pairs = args.head_dim / 2, packs = (pairs + kRowElems - 1) / kRowElems;
  const std::int64_t token = blockIdx.x, first = token * (args.turned + args.kept);
  const std::int64_t steps = args.first + token % args.time;
  const double position = static_cast<double>(args.is_inverse ? -steps : steps);
  for (std::int64_t i = threadIdx.x; i < pairs; i += kThreads) {
    rotations[i] = rotation_by(position * scaled_turns(rotary_turns(args.ratio, i), i, args.scaling));
    rotations[i].cosine *= args.scaling.amplitude;
    rotations[i].sine *= args.scaling.amplitude;
  }
  __syncthreads();
  for (std::int64_t i = threadIdx.x; i < args.turned / args.head_dim * packs; i += kThreads) {
    const std::int64_t pair = i % packs * kRowElems, head = first + i / packs * args.head_dim;
    turn_pack<P>(args, head + pair, head + pairs, pairs, rotations + pair);
  }
  if (args.in == args.out) return;
  const std::int64_t values = first + args.turned;
  for_each_pack(args.kept, [&](std::int64_t begin) {
    float x[kRowElems];
    P::load(args.in, values + begin, values + args.kept, x);
    P::store(args.out, values + begin, values + args.kept, x);
  });
}

}  // namespace

ZS_KERNEL(zs_rotary, RotaryArgs, ZS_BY_PACKS(rotary<P>(args)))

}  // namespace zs::cuda
