#include "runtime/device/cuda_device.h"
#include "tests/gpu/emulation/emulated_cublas.h"
#include "tests/gpu/emulation/kernels.h"
#include "tests/gpu/real_gpu.h"
#include "tests/kernels/backend.h"

namespace zs::test {
namespace {

/// One GPU for the whole program, emulated or this machine's first, with everything done when a launch returns.
struct Gpu {
  std::unique_ptr<EmulatedDriver> emulated = is_on_real_gpu()
                                                 ? nullptr
                                                 : std::make_unique<EmulatedDriver>(EmulatedDriver::Options{
                                                       .is_immediate = true, .kernels = emulated_kernels()});
  std::unique_ptr<EmulatedCublas> cublas = emulated ? std::make_unique<EmulatedCublas>(*emulated) : nullptr;
  CudaContext context{libraries(), 0,
                      true};  // with other processes of this program, each of which runs some of the cases
  std::unique_ptr<Allocator> memory = make_pinned_allocator(context);
  std::unique_ptr<Allocator> own_memory = make_cuda_allocator(context);
  static constexpr std::int64_t kScratchBytes = std::int64_t{64} << 20;
  const Buffer scratch = block(kScratchBytes), workspace = block(ExecContext::kWorkspaceBytes);
  CUstream_st* stream = nullptr;

  Gpu() {
    context.make_current();
    context.check(context.driver().stream_create(&stream, 1, 0), "cuStreamCreateWithPriority");
  }
  Buffer block(std::int64_t bytes) { return {own_memory->allocate(bytes), bytes, DType::u8, DeviceKind::cuda}; }
  CudaContext::Libraries libraries() const {
    if (emulated) return {emulated->table(), cublas->table()};
    return {real_driver_done_at_once(), real_cublas_done_at_once()};
  }
};

Gpu& gpu() {
  static Gpu only;
  return only;
}

}  // namespace

const KernelTable& kernels_under_test() { return cuda_kernels(); }
DeviceKind device_under_test() { return DeviceKind::cuda; }
/// Tensor cores do.
bool rounds_probabilities(DType dtype, std::int64_t head_dim) {
  return dtype == DType::bf16 && (head_dim == 64 || head_dim == 128);
}
ExecContext make_context(int threads) {
  if (gpu().emulated) gpu().emulated->run_backwards(threads % 2 == 0);
  ExecContext made(threads, gpu().stream, &gpu().context);
  made.set_memory({.scratch = gpu().scratch, .pinned = {}}, gpu().workspace);
  return made;
}
Allocator& memory_under_test() { return *gpu().memory; }

}  // namespace zs::test
