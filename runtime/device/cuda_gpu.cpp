#include "runtime/device/cuda_gpu.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "runtime/base/standard_streams.h"
#include "runtime/device/shared_library.h"

namespace zs {
namespace {

constexpr const char* kTodo = "use device \"cpu\"";
// CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
constexpr int kMajorAttribute = 75, kMinorAttribute = 76, kL2Attribute = 38;

std::string words_for(const CudaDriver& driver, int status) {
  const char* text = nullptr;
  if (driver.error_text(status, &text) != cuda_status::kSuccess || text == nullptr)
    return fmt::format("CUDA error {}", status);
  return fmt::format("CUDA error {}, {}", status, text);
}

struct LoadedDriver {
  explicit LoadedDriver(const char* name)
      : library({name}, "NVIDIA driver", kTodo, {}, {"/usr/local/nvidia/lib64", "/usr/lib/wsl/lib"}) {
    library.find(table.init, "cuInit");
    library.find(table.error_text, "cuGetErrorString");
    library.find(table.device_count, "cuDeviceGetCount");
    library.find(table.device, "cuDeviceGet");
    library.find(table.device_name, "cuDeviceGetName");
    library.find(table.device_uuid, "cuDeviceGetUuid_v2");
    library.find(table.device_attribute, "cuDeviceGetAttribute");
    library.find(table.device_memory, "cuDeviceTotalMem_v2");
    library.find(table.context_retain, "cuDevicePrimaryCtxRetain");
    library.find(table.context_release, "cuDevicePrimaryCtxRelease_v2");
    library.find(table.context_make_current, "cuCtxSetCurrent");
    library.find(table.priority_range, "cuCtxGetStreamPriorityRange");
    library.find(table.stream_create, "cuStreamCreateWithPriority");
    library.find(table.stream_destroy, "cuStreamDestroy_v2");
    library.find(table.stream_query, "cuStreamQuery");
    library.find(table.stream_wait_event, "cuStreamWaitEvent");
    library.find(table.stream_call, "cuLaunchHostFunc");
    library.find(table.event_create, "cuEventCreate");
    library.find(table.event_destroy, "cuEventDestroy_v2");
    library.find(table.event_record, "cuEventRecord");
    library.find(table.event_query, "cuEventQuery");
    library.find(table.event_elapsed, "cuEventElapsedTime");
    library.find(table.memory_allocate, "cuMemAlloc_v2");
    library.find(table.memory_free, "cuMemFree_v2");
    library.find(table.memory_info, "cuMemGetInfo_v2");
    library.find(table.host_allocate, "cuMemHostAlloc");
    library.find(table.host_free, "cuMemFreeHost");
    library.find(table.memory_set, "cuMemsetD8Async");
    library.find(table.memory_set_words, "cuMemsetD32Async");
    library.find(table.memory_copy, "cuMemcpyAsync");
    library.find(table.capture_begin, "cuStreamBeginCapture_v2");
    library.find(table.capture_end, "cuStreamEndCapture");
    library.find(table.graph_instantiate, "cuGraphInstantiateWithFlags");
    library.find(table.graph_launch, "cuGraphLaunch");
    library.find(table.graph_exec_destroy, "cuGraphExecDestroy");
    library.find(table.graph_destroy, "cuGraphDestroy");
    library.find(table.module_load, "cuModuleLoadData");
    library.find(table.module_unload, "cuModuleUnload");
    library.find(table.module_function, "cuModuleGetFunction");
    library.find_if_there(table.function_load, "cuFuncLoad");
    library.find(table.function_attribute, "cuFuncSetAttribute");
    library.find(table.launch, "cuLaunchKernel");
  }

  SharedLibrary library;
  CudaDriver table{};
};

std::string hexadecimal(const std::array<unsigned char, 16>& bytes) {
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace

bool loses_context(int status) {
  // Uncorrectable errors of memory and links; illegal address, time-out, context destroyed, assert; from a stack error
  // to a failed launch.
  constexpr std::array kAlone = {214, 220, 700, 702, 709, 710};
  return std::find(kAlone.begin(), kAlone.end(), status) != kAlone.end() || (status >= 714 && status <= 719);
}

void check_cuda(const CudaDriver& driver, int status, const char* call, const std::string& where) {
  if (status == cuda_status::kSuccess) return;
  const std::string what = fmt::format("{}: {}", call, words_for(driver, status));
  if (status == cuda_status::kOutOfMemory)
    throw CudaError(ExitCode::out_of_memory, status, what, where,
                    "reduce the micro-batch or the model, or use more ranks");
  if (status == cuda_status::kNoKernelImage)
    throw CudaError(ExitCode::config, status, what, where,
                    "build with -Dgpu_arch= and the compute capability of this GPU");
  throw CudaError(ExitCode::internal, status, what, where,
                  loses_context(status) ? "the GPU's work is lost; start again" : "");
}

void log_cuda(const CudaDriver& driver, int status, const char* call) noexcept {
  if (status == cuda_status::kSuccess || loses_context(status)) return;
  try {
    print_to_stderr("zshard: {}: {}\n", call, words_for(driver, status));
  } catch (const std::exception&) {
    std::fputs("zshard: a call of the NVIDIA driver failed\n", stderr);
  }
}

std::shared_ptr<const CudaDriver> open_cuda_driver(const char* library) {
  const auto loaded = std::make_shared<const LoadedDriver>(library);
  const CudaDriver& driver = loaded->table;
  int gpus = 0, status = driver.init(0);
  if (status == cuda_status::kSuccess) status = driver.device_count(&gpus);
  if (status != cuda_status::kSuccess)
    throw Error(ExitCode::config, fmt::format("the NVIDIA driver does not start: {}", words_for(driver, status)),
                library, kTodo);
  if (gpus == 0)
    throw Error(ExitCode::config, "the NVIDIA driver shows no GPU", library,
                fmt::format("see CUDA_VISIBLE_DEVICES, or {}", kTodo));
  return {loaded, &loaded->table};
}

std::vector<CudaGpu> cuda_gpus(const CudaDriver& driver) {
  const auto check = [&](int status, const char* call) { check_cuda(driver, status, call, "looking for GPUs"); };
  int count = 0;
  check(driver.device_count(&count), "cuDeviceGetCount");
  std::vector<CudaGpu> gpus(static_cast<std::size_t>(count));
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CudaGpu& gpu = gpus[static_cast<std::size_t>(ordinal)];
    int device = 0, l2_bytes = 0;
    std::array<char, 128> name{};
    std::array<unsigned char, 16> uuid{};
    std::size_t bytes = 0;
    check(driver.device(&device, ordinal), "cuDeviceGet");
    check(driver.device_name(name.data(), static_cast<int>(name.size()), device), "cuDeviceGetName");
    check(driver.device_uuid(uuid.data(), device), "cuDeviceGetUuid");
    check(driver.device_attribute(&gpu.major, kMajorAttribute, device), "cuDeviceGetAttribute");
    check(driver.device_attribute(&gpu.minor, kMinorAttribute, device), "cuDeviceGetAttribute");
    check(driver.device_attribute(&l2_bytes, kL2Attribute, device), "cuDeviceGetAttribute");
    check(driver.device_memory(&bytes, device), "cuDeviceTotalMem");
    gpu.ordinal = ordinal;
    gpu.name = name.data();
    gpu.uuid = hexadecimal(uuid);
    gpu.memory_bytes = static_cast<std::int64_t>(bytes);
    gpu.l2_bytes = l2_bytes;
  }
  return gpus;
}

}  // namespace zs
