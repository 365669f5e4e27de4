// Compiled by nvcc where there is one, and linked to nothing: what CudaDriver says of the driver's functions is what
// NVIDIA's header says.
#include <cuda.h>

#include "runtime/device/abi_check.h"
#include "runtime/device/cuda_driver.h"

namespace zs::abi {

static_assert(kSame<decltype(CudaDriver::init), decltype(&cuInit)>);
static_assert(kSame<decltype(CudaDriver::error_text), decltype(&cuGetErrorString)>);
static_assert(kSame<decltype(CudaDriver::device_count), decltype(&cuDeviceGetCount)>);
static_assert(kSame<decltype(CudaDriver::device), decltype(&cuDeviceGet)>);
static_assert(kSame<decltype(CudaDriver::device_name), decltype(&cuDeviceGetName)>);
static_assert(kSame<decltype(CudaDriver::device_uuid), decltype(&cuDeviceGetUuid)>);
static_assert(kSame<decltype(CudaDriver::device_attribute), decltype(&cuDeviceGetAttribute)>);
static_assert(kSame<decltype(CudaDriver::device_memory), decltype(&cuDeviceTotalMem)>);
static_assert(kSame<decltype(CudaDriver::context_retain), decltype(&cuDevicePrimaryCtxRetain)>);
static_assert(kSame<decltype(CudaDriver::context_release), decltype(&cuDevicePrimaryCtxRelease)>);
static_assert(kSame<decltype(CudaDriver::context_make_current), decltype(&cuCtxSetCurrent)>);
static_assert(kSame<decltype(CudaDriver::priority_range), decltype(&cuCtxGetStreamPriorityRange)>);
static_assert(kSame<decltype(CudaDriver::stream_create), decltype(&cuStreamCreateWithPriority)>);
static_assert(kSame<decltype(CudaDriver::stream_destroy), decltype(&cuStreamDestroy)>);
static_assert(kSame<decltype(CudaDriver::stream_query), decltype(&cuStreamQuery)>);
static_assert(kSame<decltype(CudaDriver::stream_wait_event), decltype(&cuStreamWaitEvent)>);
static_assert(kSame<decltype(CudaDriver::stream_call), decltype(&cuLaunchHostFunc)>);
static_assert(kSame<decltype(CudaDriver::event_create), decltype(&cuEventCreate)>);
static_assert(kSame<decltype(CudaDriver::event_destroy), decltype(&cuEventDestroy)>);
static_assert(kSame<decltype(CudaDriver::event_record), decltype(&cuEventRecord)>);
static_assert(kSame<decltype(CudaDriver::event_query), decltype(&cuEventQuery)>);
static_assert(kSame<decltype(CudaDriver::event_elapsed), decltype(&cuEventElapsedTime)>);
static_assert(CudaDriver::kWithTime == CU_EVENT_DEFAULT && CudaDriver::kWithoutTime == CU_EVENT_DISABLE_TIMING);
static_assert(kSame<decltype(CudaDriver::memory_allocate), decltype(&cuMemAlloc)>);
static_assert(kSame<decltype(CudaDriver::memory_free), decltype(&cuMemFree)>);
static_assert(kSame<decltype(CudaDriver::memory_info), decltype(&cuMemGetInfo)>);
static_assert(kSame<decltype(CudaDriver::host_allocate), decltype(&cuMemHostAlloc)>);
static_assert(kSame<decltype(CudaDriver::host_free), decltype(&cuMemFreeHost)>);
static_assert(kSame<decltype(CudaDriver::memory_set), decltype(&cuMemsetD8Async)>);
static_assert(kSame<decltype(CudaDriver::memory_set_words), decltype(&cuMemsetD32Async)>);
static_assert(kSame<decltype(CudaDriver::memory_copy), decltype(&cuMemcpyAsync)>);
static_assert(kSame<decltype(CudaDriver::capture_begin), decltype(&cuStreamBeginCapture)>);
static_assert(kSame<decltype(CudaDriver::capture_end), decltype(&cuStreamEndCapture)>);
static_assert(CudaDriver::kThreadLocalCapture == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
static_assert(kSame<decltype(CudaDriver::graph_instantiate), decltype(&cuGraphInstantiateWithFlags)>);
static_assert(kSame<decltype(CudaDriver::graph_launch), decltype(&cuGraphLaunch)>);
static_assert(kSame<decltype(CudaDriver::graph_exec_destroy), decltype(&cuGraphExecDestroy)>);
static_assert(kSame<decltype(CudaDriver::graph_destroy), decltype(&cuGraphDestroy)>);
static_assert(kSame<decltype(CudaDriver::module_load), decltype(&cuModuleLoadData)>);
static_assert(kSame<decltype(CudaDriver::module_unload), decltype(&cuModuleUnload)>);
static_assert(kSame<decltype(CudaDriver::module_function), decltype(&cuModuleGetFunction)>);
#if CUDA_VERSION >= 12040
static_assert(kSame<decltype(CudaDriver::function_load), decltype(&cuFuncLoad)>);
#endif
static_assert(kSame<decltype(CudaDriver::function_attribute), decltype(&cuFuncSetAttribute)>);
static_assert(CudaDriver::kMostDynamicSharedBytes == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
static_assert(kSame<decltype(CudaDriver::launch), decltype(&cuLaunchKernel)>);
static_assert(cuda_status::kSuccess == CUDA_SUCCESS && cuda_status::kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY &&
              cuda_status::kNoKernelImage == CUDA_ERROR_NO_BINARY_FOR_GPU &&
              cuda_status::kNotFound == CUDA_ERROR_NOT_FOUND && cuda_status::kNotReady == CUDA_ERROR_NOT_READY);

}  // namespace zs::abi
