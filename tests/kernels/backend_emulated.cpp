#include "runtime/device/cuda_device.h"
#include "tests/gpu/emulation/emulated_cublas.h"
#include "tests/gpu/emulation/kernels.h"
#include "tests/kernels/backend.h"

namespace zs::test {
namespace {

/// One emulated GPU for the whole program, with everything done when a launch returns.
struct Gpu {
  EmulatedDriver driver{{.is_immediate = true, .kernels = emulated_kernels()}};
  EmulatedCublas cublas{driver};
  CudaContext context{{driver.table(), cublas.table()}, 0, false};
  CUstream_st* stream = nullptr;

  Gpu() {
    context.make_current();
    context.check(context.driver().stream_create(&stream, 1, 0), "cuStreamCreateWithPriority");
  }
};

Gpu& gpu() {
  static Gpu only;
  return only;
}

}  // namespace

const KernelTable& kernels_under_test() { return cuda_kernels(); }
DeviceKind device_under_test() { return DeviceKind::cuda; }
ExecContext make_context(int threads) {
  gpu().driver.run_backwards(threads % 2 == 0);
  return {threads, gpu().stream, &gpu().context};
}

}  // namespace zs::test
