#include "kernels/cuda/device.h"

/// AdamW with moments of 8 bits: a block of threads for each block of elements.
namespace zs::cuda {
namespace {

static_assert(kThreads == kCodeBlockElems && kThreads == kCodes);

/// This thread's element, as it lies in the part; -1: the part has it not.
__device__ std::int64_t element_of_thread(const BlockwiseAdamWArgs& args) {
  const std::int64_t at = (first_block_of(args.part) + blockIdx.x) * kCodeBlockElems + threadIdx.x - args.part.first;
  if (at < 0) return -1;
  const std::int64_t run = args.elems <= args.part.run ? 0 : at / args.part.stride,
                     within = at - run * args.part.stride, element = run * args.part.run + within;
  return within < args.part.run && element < args.elems ? element : -1;
}

struct Moments {
  float m, v;
};

/// What codes stand for, in shared memory.
struct CodeValues {
  float m[kCodes], v[kCodes];
};

__device__ void load_codes(const BlockwiseAdamWArgs& args, CodeValues& codes) {
  codes.m[threadIdx.x] = args.m_codes.values[threadIdx.x];
  codes.v[threadIdx.x] = args.v_codes.values[threadIdx.x];
  __syncthreads();
}

/// Behind this step.
__device__ Moments moments_of(const BlockwiseAdamWArgs& args, const CodeValues& codes, std::int64_t i, float g) {
  const float m = codes.m[args.m[i]] * args.m_scales[blockIdx.x], v = codes.v[args.v[i]] * args.v_scales[blockIdx.x];
  return {args.beta1 * m + (1.0f - args.beta1) * g, args.beta2 * v + (1.0f - args.beta2) * g * g};
}

__device__ float finite_most(float a, float b) {
  constexpr float kLargestFloat = 3.40282347e38f;
  const float most = a > b ? a : b;
  return most < kLargestFloat ? most : kLargestFloat;
}

}  // namespace

extern "C" __global__ void zs_blockwise_adamw_scales(const BlockwiseAdamWArgs args) {
  __shared__ float shared[kThreads];
  __shared__ CodeValues codes;
  load_codes(args, codes);
  const Scalars s = *args.scalars;
  const std::int64_t i = element_of_thread(args);
  const Moments own = i < 0 ? Moments{0, 0} : moments_of(args, codes, i, args.grad[i] * s.clip_coefficient);
  const float m = block_reduce(fabsf(own.m), shared, finite_most), v = block_reduce(own.v, shared, finite_most);
  if (threadIdx.x != 0) return;
  args.new_m_scales[blockIdx.x] = s.skip != 0.0f ? args.m_scales[blockIdx.x] : m;
  args.new_v_scales[blockIdx.x] = s.skip != 0.0f ? args.v_scales[blockIdx.x] : v;
}

extern "C" __global__ void zs_blockwise_adamw(const BlockwiseAdamWArgs args) {
  __shared__ CodeValues codes;
  __shared__ float m_middles[kCodes], v_middles[kCodes];
  load_codes(args, codes);
  if (static_cast<int>(threadIdx.x) < kCodes - 1) {
    m_middles[threadIdx.x] = middle_above(codes.m, static_cast<int>(threadIdx.x));
    v_middles[threadIdx.x] = middle_above(codes.v, static_cast<int>(threadIdx.x));
  }
  __syncthreads();
  const Scalars s = *args.scalars;
  const std::int64_t i = element_of_thread(args);
  if (s.skip != 0.0f || i < 0) return;
  const auto [m, v] = moments_of(args, codes, i, args.grad[i] * s.clip_coefficient);
  const float before = args.master[i];
  const float master = before - s.lr * (m / s.bias_correction1 / (sqrtf(v / s.bias_correction2) + args.eps) +
                                        args.weight_decay * before);
  args.master[i] = master;
  args.m[i] = static_cast<std::uint8_t>(nearest_code(m_middles, m / args.new_m_scales[blockIdx.x]));
  args.v[i] = static_cast<std::uint8_t>(nearest_code_above_zero(v_middles, v / args.new_v_scales[blockIdx.x]));
  if (args.copy != nullptr) args.copy[i] = from_float<Bf16>(master).bits;
}

}  // namespace zs::cuda
