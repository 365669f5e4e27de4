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

/// Values that codes stand for, in shared memory.
struct CodeValues {
  float m[kCodes], v[kCodes];
};

__device__ void load_codes(const BlockwiseAdamWArgs& args, CodeValues& codes) {
  codes.m[threadIdx.x] = args.m_codes.values[threadIdx.x];
  codes.v[threadIdx.x] = args.v_codes.values[threadIdx.x];
  __syncthreads();
}

__device__ Moments moments_of(const BlockwiseAdamWArgs& args, const CodeValues& codes, std::int64_t i) {
  return {codes.m[args.m[i]] * args.m_scales[blockIdx.x], codes.v[args.v[i]] * args.v_scales[blockIdx.x]};
}

__device__ float finite_most(float a, float b) {
  constexpr float kLargestFloat = 3.40282347e38f;
  const float most = a > b ? a : b;
  return most < kLargestFloat ? most : kLargestFloat;
}

}  // namespace

extern "C" __global__ void zs_blockwise_adamw_scales(const BlockwiseAdamWArgs args) {
  __shared__ CodeValues codes;
  load_codes(args, codes);
  const StepScalars s = *args.scalars;
  const std::int64_t i = element_of_thread(args);
  Moments own{0, 0};
  if (i >= 0) {
    own = moments_of(args, codes, i);
    adamw_moments(args.options, s, args.grad[i], own.m, own.v);
  }
  const float m = block_reduce(fabsf(own.m), finite_most), v = block_reduce(own.v, finite_most);
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
  const StepScalars s = *args.scalars;
  const std::int64_t i = element_of_thread(args);
  if (s.skip != 0.0f || i < 0) return;
  auto [m, v] = moments_of(args, codes, i);
  const float master = updated<true>(args.options, s, args.weight_decay, args.master[i], args.grad[i], m, v);
  args.master[i] = master;
  args.m[i] = static_cast<std::uint8_t>(nearest_code(m_middles, m / args.new_m_scales[blockIdx.x]));
  args.v[i] = static_cast<std::uint8_t>(nearest_code_above_zero(v_middles, v / args.new_v_scales[blockIdx.x]));
  if (args.copy != nullptr) args.copy[i] = from_float<Bf16>(master).bits;
}

}  // namespace zs::cuda
