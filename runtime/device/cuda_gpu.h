#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/device/cuda_driver.h"

namespace zs {

/// A function of the driver, or of cuBLASLt, returned an error; its number, its own words, and the function are in the
/// message.
class CudaError final : public Error {
 public:
  CudaError(ExitCode code, int status, const std::string& what_happened, const std::string& where,
            const std::string& what_to_do)
      : Error(code, what_happened, where, what_to_do), status_(status) {}
  int status() const { return status_; }

 private:
  int status_;
};

/// Throws a CudaError unless `status` is success. `call`: the driver's name of the function; `where`: the GPU, and what
/// it was doing.
void check_cuda(const CudaDriver& driver, int status, const char* call, const std::string& where);
/// Logs such an error where nothing may be thrown: one line on stderr, unless the context is known to be lost, which
/// has been said then.
void log_cuda(const CudaDriver& driver, int status, const char* call) noexcept;

/// True for an error after which every call on the GPU's context fails with the same number, until the process ends.
bool loses_context(int status);

/// Opens the driver's library and initialises it. Error(config) that says in one line why there is none: no library,
/// too old a one, no GPU.
std::shared_ptr<const CudaDriver> open_cuda_driver(const char* library = "libcuda.so.1");

/// A GPU as the driver shows it to this process (CUDA_VISIBLE_DEVICES hides others and changes the order).
struct CudaGpu {
  int ordinal = 0;
  std::string name, uuid;  ///< "NVIDIA H200", 32 hexadecimal digits
  int major = 0, minor = 0;
  std::int64_t memory_bytes = 0, l2_bytes = 0;

  std::string describe() const { return fmt::format("GPU {} ({})", ordinal, name); }
};
std::vector<CudaGpu> cuda_gpus(const CudaDriver& driver);
/// GPUs of this machine's driver; at least one. Error(config) as Device::create has them.
std::vector<CudaGpu> visible_gpus();

}  // namespace zs
