#include "tests/gpu/real_gpu.h"

#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>

namespace zs::test {
namespace {

/// The driver's functions are plain functions: these ask whom they stand for.
struct DoneAtOnce {
  static const std::shared_ptr<const CudaDriver>& real() {
    static const std::shared_ptr<const CudaDriver> driver = open_cuda_driver();
    return driver;
  }
  /// `status`, or that of the stream once it has ended. A GPU that stands still ends with the test's timeout.
  static int finish(int status, CUstream_st* stream) {
    while (status == cuda_status::kSuccess) {
      const int state = real()->stream_query(stream);
      if (state != cuda_status::kNotReady) return state;
      std::this_thread::sleep_for(std::chrono::microseconds(5));
    }
    return status;
  }
  static int memory_set(CudaDriver::Address address, unsigned char value, std::size_t bytes, CUstream_st* stream) {
    return finish(real()->memory_set(address, value, bytes, stream), stream);
  }
  static int memory_set_words(CudaDriver::Address address, unsigned value, std::size_t words, CUstream_st* stream) {
    return finish(real()->memory_set_words(address, value, words, stream), stream);
  }
  static int memory_copy(CudaDriver::Address to, CudaDriver::Address from, std::size_t bytes, CUstream_st* stream) {
    return finish(real()->memory_copy(to, from, bytes, stream), stream);
  }
  static int launch(CUfunc_st* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                    unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream_st* stream, void** arguments,
                    void** extra) {
    return finish(real()->launch(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,
                                 arguments, extra),
                  stream);
  }

  static const std::shared_ptr<const CublasLt>& real_cublas() {
    static const std::shared_ptr<const CublasLt> library = open_cublas_lt();
    return library;
  }
  static int multiply(CublasLt::Handle* handle, CublasLt::Operation* operation, const void* alpha, const void* a,
                      CublasLt::Layout* a_layout, const void* b, CublasLt::Layout* b_layout, const void* beta,
                      const void* c, CublasLt::Layout* c_layout, void* d, CublasLt::Layout* d_layout,
                      const CublasLt::Algorithm* algorithm, void* workspace, std::size_t workspace_bytes,
                      CUstream_st* stream) {
    const int status = real_cublas()->multiply(handle, operation, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d,
                                               d_layout, algorithm, workspace, workspace_bytes, stream);
    if (status != cublas::kSuccess) return status;
    return finish(cuda_status::kSuccess, stream) == cuda_status::kSuccess ? cublas::kSuccess : cublas::kExecutionFailed;
  }
};

}  // namespace

bool is_on_real_gpu() {
  const char* const said = std::getenv("ZSHARD_TEST_GPU");
  return said != nullptr && std::string_view(said) == "1";
}

std::shared_ptr<const CudaDriver> real_driver_done_at_once() {
  const auto driver = std::make_shared<CudaDriver>(*DoneAtOnce::real());
  driver->memory_set = DoneAtOnce::memory_set;
  driver->memory_set_words = DoneAtOnce::memory_set_words;
  driver->memory_copy = DoneAtOnce::memory_copy;
  driver->launch = DoneAtOnce::launch;
  return driver;
}

std::shared_ptr<const CublasLt> real_cublas_done_at_once() {
  const auto library = std::make_shared<CublasLt>(*DoneAtOnce::real_cublas());
  library->multiply = DoneAtOnce::multiply;
  return library;
}

}  // namespace zs::test
