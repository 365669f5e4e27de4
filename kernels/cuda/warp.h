#pragma once

#include "kernels/cuda/device.h"

/// Operations that the 32 threads (lanes) of a warp do together, and copies that arrive later: PTX instructions by
/// name. All lanes must come to the functions marked (warp), with the same code path after them. Where the host's
/// compiler reads the kernels, tests/gpu/emulation has the same functions, which also find lanes that do not come,
/// copies that are not waited for, and rows that share banks.
namespace zs::cuda {

__device__ inline int lane_of_warp() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ inline int warp_of_block() { return static_cast<int>(threadIdx.x) / kWarp; }

/// (warp) `value` of the lane whose number differs in the bits of `lanes`.
__device__ float shuffle_xor(float value, int lanes);
/// (warp) Bit l: whether `value` of lane l is true.
__device__ std::uint32_t vote(bool value);
/// (warp) What lanes have written to shared memory before, all lanes read after.
__device__ void sync_warp();

/// (warp) c (16, 8) += a (16, 16) b (16, 8), bf16 with f32 sums. A register holds two elements, the first in its lower
/// half. With g = lane / 4 and i = lane % 4 * 2, the lane holds of a: rows g, g + 8, g, g + 8 at columns i and i + 1,
/// in the last two registers 8 further; of b: rows i and i + 1, and 8 further, of column g; of c: row g, columns i and
/// i + 1, then row g + 8. (PTX ISA, "Matrix Fragments for mma.m16n8k16".)
__device__ void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1);

/// (warp) Four 8 x 8 matrices of bf16 from shared memory: `row` of lane l is the 16-byte row l % 8 of matrix l / 8. The
/// lane gets of each matrix row lane / 4, columns lane % 4 * 2 and the next; transposed: of column lane / 4 these rows.
/// (PTX ISA, ldmatrix.)
__device__ void load_matrices(std::uint32_t (&out)[4], const Words* row);
__device__ void load_matrices_transposed(std::uint32_t (&out)[4], const Words* row);

/// Begins to copy 16 or 4 bytes to shared memory; zeros where not `is_there` (then `from` is not read). They are there
/// when this thread has come to wait_copies, and for other threads after a barrier after that.
__device__ void copy_async(Words* to, const Words* from, bool is_there);
__device__ void copy_async(float* to, const float* from, bool is_there);
__device__ void wait_copies();

inline constexpr float kLog2E = 1.44269504088896340736f;
/// 2^x, to about two units in the last place; 0 for minus infinity.
__device__ float exp2_of(float x);
/// Both to bf16, to nearest even.
__device__ std::uint32_t pack_bf16(float low, float high);

/// The dynamic shared memory that the launch asked for, 128-byte aligned.
__device__ Words* dynamic_shared();

#ifdef __CUDACC__
extern __shared__ __align__(128) Words zs_dynamic_shared[];

__device__ inline std::uint32_t shared_address(const void* at) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}

__device__ inline float shuffle_xor(float value, int lanes) { return __shfl_xor_sync(0xffffffffu, value, lanes); }
__device__ inline std::uint32_t vote(bool value) { return __ballot_sync(0xffffffffu, value); }
__device__ inline void sync_warp() { __syncwarp(); }

__device__ inline void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void load_matrices(std::uint32_t (&out)[4], const Words* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ inline void load_matrices_transposed(std::uint32_t (&out)[4], const Words* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}

__device__ inline void copy_async(Words* to, const Words* from, bool is_there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
               "l"(__cvta_generic_to_global(from)), "r"(is_there ? 16 : 0)
               : "memory");
}
__device__ inline void copy_async(float* to, const float* from, bool is_there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)),
               "l"(__cvta_generic_to_global(from)), "r"(is_there ? 4 : 0)
               : "memory");
}
__device__ inline void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ inline float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

__device__ inline Words* dynamic_shared() { return zs_dynamic_shared; }
#endif

}  // namespace zs::cuda
