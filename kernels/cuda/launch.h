#pragma once

#include <initializer_list>
#include <span>
#include <string>

#include "kernels/cuda/args.h"
#include "kernels/cuda/general_args.h"
#include "kernels/families.h"
#include "runtime/device/stream.h"

struct CUstream_st;

/// Launches: from checked Buffers to kernels of the GPU.
namespace zs::cuda {

/// Every kernel of the image, as the families have named them.
std::span<const std::string> kernel_names();
/// Name of the kernel that ZS_KERNEL (device.h) has for elements of this dtype, or ZS_PAIR_KERNEL for T and U.
std::string typed(const std::string& kernel, DType dtype);
inline std::string typed(const std::string& kernel, DType t, DType u) { return typed(typed(kernel, t), u); }
/// Adds the names of all that ZS_KERNEL makes of each, or ZS_PAIR_KERNEL.
void add_typed(KernelNames& names, std::initializer_list<std::string> kernels);
void add_pairs(KernelNames& names, std::initializer_list<std::string> kernels);

/// Launches a kernel; `args` is its only argument. `blocks` of `threads`, each with so much dynamic shared memory; no
/// blocks is no launch.
void launch(ExecContext& ctx, const std::string& kernel, std::int64_t blocks, int threads, const void* args,
            int shared_bytes = 0);

template <class Args>
void launch_elems(ExecContext& ctx, const std::string& kernel, std::int64_t elems, std::int64_t elems_a_thread,
                  const Args& args) {
  const std::int64_t a_block = elems_a_thread * kThreads;
  launch(ctx, kernel, (elems + a_block - 1) / a_block, kThreads, &args);
}

ElementKind kind_of(DType dtype);

/// The driver's stream that the context's work goes to.
CUstream_st* stream_of(const ExecContext& ctx);
void set_bytes(ExecContext& ctx, const Buffer& out, unsigned char value);

/// The buffer's f32 or bf16 elements on the GPU; another dtype or device is a bug.
void* elements_of(const Buffer& buffer);
inline void* elements_or_none(const Buffer& buffer) { return buffer.empty() ? nullptr : elements_of(buffer); }
float* floats_of(const Buffer& buffer);

/// True if every address is a multiple of 16; null is.
template <class... Address>
bool are_aligned(Address... addresses) {
  return ((reinterpret_cast<std::uintptr_t>(addresses) % 16 == 0) && ...);
}

/// True if rows of `width` elements, which begin at these addresses, are whole packs.
template <class... Address>
bool are_whole_packs(std::int64_t width, Address... addresses) {
  return width % kRowElems == 0 && are_aligned(addresses...);
}
/// Packs of a row.
constexpr std::int64_t packs_of(std::int64_t width) { return (width + kRowElems - 1) / kRowElems; }

}  // namespace zs::cuda
