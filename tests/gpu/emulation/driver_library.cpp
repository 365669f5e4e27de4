// The emulated driver and cuBLASLt as one shared library, which programs open as libcuda.so.1 and as libcublasLt.so.13:
// whole programs run on an emulated GPU, and find it as they find a real one. What is enqueued is done at once.
#include <cstdint>
#include <cstring>

#include "tests/gpu/emulation/emulated_cublas.h"
#include "tests/gpu/emulation/emulated_functions.h"
#include "tests/gpu/emulation/kernels.h"

using namespace zs::test;

namespace {

/// Never destroyed: a program's own statics may outlive this library's.
struct EmulatedGpu {
  EmulatedDriver driver{{.memory_bytes = std::int64_t{4} << 30, .is_immediate = true, .kernels = emulated_kernels()}};
  EmulatedCublas cublas{driver};

  EmulatedGpu() {
    cublas.know_candidates(3, [](int, int candidate) { return candidate == 1 ? 0.5 : 1.0; });
  }
};
const EmulatedGpu& gpu() {
  static const EmulatedGpu* const only = new EmulatedGpu;
  return *only;
}
const zs::CudaDriver& driver() { return *gpu().driver.table(); }
const zs::CublasLt& cublas() { return *gpu().cublas.table(); }

}  // namespace

// A function by its name in NVIDIA's library jumps to the emulated one, whatever its arguments are.
#define ZS_FORWARD(table, member, symbol)                                                                       \
  extern "C" __attribute__((visibility("hidden"))) const void* const symbol##_target =                          \
      reinterpret_cast<const void*>(table().member);                                                            \
  __asm__(".pushsection .text\n.globl " #symbol "\n.type " #symbol ", @function\n" #symbol ":\n  jmp *" #symbol \
          "_target(%rip)\n.popsection\n");

ZS_FORWARD(driver, init, cuInit)
ZS_FORWARD(driver, error_text, cuGetErrorString)
ZS_FORWARD(driver, device_count, cuDeviceGetCount)
ZS_FORWARD(driver, device, cuDeviceGet)
ZS_FORWARD(driver, device_name, cuDeviceGetName)
/// All processes have the same GPU.
extern "C" int cuDeviceGetUuid_v2(void* uuid, int) {
  std::memcpy(uuid, "the emulated GPU", 16);
  return 0;
}
ZS_FORWARD(driver, device_attribute, cuDeviceGetAttribute)
ZS_FORWARD(driver, device_memory, cuDeviceTotalMem_v2)
ZS_FORWARD(driver, context_retain, cuDevicePrimaryCtxRetain)
ZS_FORWARD(driver, context_release, cuDevicePrimaryCtxRelease_v2)
ZS_FORWARD(driver, context_make_current, cuCtxSetCurrent)
ZS_FORWARD(driver, priority_range, cuCtxGetStreamPriorityRange)
ZS_FORWARD(driver, stream_create, cuStreamCreateWithPriority)
ZS_FORWARD(driver, stream_destroy, cuStreamDestroy_v2)
ZS_FORWARD(driver, stream_query, cuStreamQuery)
ZS_FORWARD(driver, stream_wait_event, cuStreamWaitEvent)
ZS_FORWARD(driver, stream_call, cuLaunchHostFunc)
ZS_FORWARD(driver, event_create, cuEventCreate)
ZS_FORWARD(driver, event_destroy, cuEventDestroy_v2)
ZS_FORWARD(driver, event_record, cuEventRecord)
ZS_FORWARD(driver, event_query, cuEventQuery)
ZS_FORWARD(driver, event_elapsed, cuEventElapsedTime)
ZS_FORWARD(driver, memory_allocate, cuMemAlloc_v2)
ZS_FORWARD(driver, memory_free, cuMemFree_v2)
ZS_FORWARD(driver, memory_info, cuMemGetInfo_v2)
ZS_FORWARD(driver, host_allocate, cuMemHostAlloc)
ZS_FORWARD(driver, host_free, cuMemFreeHost)
ZS_FORWARD(driver, memory_set, cuMemsetD8Async)
ZS_FORWARD(driver, memory_set_words, cuMemsetD32Async)
ZS_FORWARD(driver, memory_copy, cuMemcpyAsync)
ZS_FORWARD(driver, capture_begin, cuStreamBeginCapture_v2)
ZS_FORWARD(driver, capture_end, cuStreamEndCapture)
ZS_FORWARD(driver, graph_instantiate, cuGraphInstantiateWithFlags)
ZS_FORWARD(driver, graph_launch, cuGraphLaunch)
ZS_FORWARD(driver, graph_exec_destroy, cuGraphExecDestroy)
ZS_FORWARD(driver, graph_destroy, cuGraphDestroy)
ZS_FORWARD(driver, module_load, cuModuleLoadData)
ZS_FORWARD(driver, module_unload, cuModuleUnload)
ZS_FORWARD(driver, module_function, cuModuleGetFunction)
ZS_FORWARD(driver, function_load, cuFuncLoad)
ZS_FORWARD(driver, function_attribute, cuFuncSetAttribute)
ZS_FORWARD(driver, launch, cuLaunchKernel)
ZS_FORWARD(cublas, status_text, cublasLtGetStatusString)
ZS_FORWARD(cublas, version, cublasLtGetVersion)
ZS_FORWARD(cublas, create, cublasLtCreate)
ZS_FORWARD(cublas, destroy, cublasLtDestroy)
ZS_FORWARD(cublas, operation_create, cublasLtMatmulDescCreate)
ZS_FORWARD(cublas, operation_destroy, cublasLtMatmulDescDestroy)
ZS_FORWARD(cublas, operation_set, cublasLtMatmulDescSetAttribute)
ZS_FORWARD(cublas, layout_create, cublasLtMatrixLayoutCreate)
ZS_FORWARD(cublas, layout_destroy, cublasLtMatrixLayoutDestroy)
ZS_FORWARD(cublas, preference_create, cublasLtMatmulPreferenceCreate)
ZS_FORWARD(cublas, preference_destroy, cublasLtMatmulPreferenceDestroy)
ZS_FORWARD(cublas, preference_set, cublasLtMatmulPreferenceSetAttribute)
ZS_FORWARD(cublas, find_algorithms, cublasLtMatmulAlgoGetHeuristic)
ZS_FORWARD(cublas, multiply, cublasLtMatmul)
