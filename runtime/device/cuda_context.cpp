#include "runtime/device/cuda_context.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "runtime/device/product_choices.h"

namespace zs {
namespace {

CudaGpu gpu_of(const CudaDriver& driver, int ordinal) {
  const std::vector<CudaGpu> gpus = cuda_gpus(driver);
  if (ordinal >= 0 && ordinal < static_cast<int>(gpus.size())) return gpus[static_cast<std::size_t>(ordinal)];
  throw Error(ExitCode::config, fmt::format("there is no GPU {}: the driver shows {}", ordinal, gpus.size()), "",
              "start at most one rank for each GPU of a host");
}

class CudaAllocator final : public Allocator {
 public:
  explicit CudaAllocator(const CudaContext& context) : context_(context) {}
  DeviceKind device() const override { return DeviceKind::cuda; }

  void* allocate(std::int64_t bytes) override {
    ZS_CHECK(bytes >= 0, "allocation of {} bytes", bytes);
    context_.make_current();
    CudaDriver::Address address = 0;
    const int status =
        context_.driver().memory_allocate(&address, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)));
    if (status == cuda_status::kOutOfMemory) throw out_of_memory(bytes);
    context_.check(status, "cuMemAlloc");
    return reinterpret_cast<void*>(address);
  }

  void deallocate(void* address, std::int64_t) noexcept override {
    int status = context_.try_make_current();
    if (status == cuda_status::kSuccess)
      status = context_.driver().memory_free(reinterpret_cast<CudaDriver::Address>(address));
    log_cuda(context_.driver(), status, "cuMemFree");
  }

 private:
  Error out_of_memory(std::int64_t bytes) const {
    const CudaContext::Room room = context_.room();
    return {ExitCode::out_of_memory,
            fmt::format("cannot allocate {} bytes of GPU memory: {} of {} are free", bytes, room.free_bytes,
                        room.total_bytes),
            context_.gpu().describe(),
            "reduce the micro-batch or the model, use more ranks, or end what else runs on this GPU"};
  }

  const CudaContext& context_;
};

/// A slab from elsewhere, and everything else as ever.
class SlabAllocator final : public Allocator {
 public:
  SlabAllocator(const CudaContext& context, Allocator& memory, std::int64_t slab_bytes)
      : context_(context), memory_(memory), slab_bytes_(slab_bytes), rest_(make_cuda_allocator(context)) {}
  DeviceKind device() const override { return DeviceKind::cuda; }

  void* allocate(std::int64_t bytes) override {
    if (slab_ != nullptr || bytes < slab_bytes_) return rest_->allocate(bytes);
    context_.make_current();
    try {
      return slab_ = memory_.allocate(bytes);
    } catch (const Error&) {  // the rounded size may not be there
      return rest_->allocate(bytes);
    }
  }

  void deallocate(void* address, std::int64_t bytes) noexcept override {
    if (address != slab_) return rest_->deallocate(address, bytes);
    log_cuda(context_.driver(), context_.try_make_current(), "cuCtxSetCurrent");
    memory_.deallocate(address, bytes);
    slab_ = nullptr;
  }

 private:
  const CudaContext& context_;
  Allocator& memory_;
  const std::int64_t slab_bytes_;
  const std::unique_ptr<Allocator> rest_;
  void* slab_ = nullptr;
};

class PinnedAllocator final : public Allocator {
 public:
  explicit PinnedAllocator(const CudaContext& context) : context_(context) {}
  DeviceKind device() const override { return DeviceKind::cpu; }

  void* allocate(std::int64_t bytes) override {
    ZS_CHECK(bytes >= 0, "allocation of {} bytes", bytes);
    context_.make_current();
    void* address = nullptr;
    const int status = context_.driver().host_allocate(
        &address, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)), kPortable);
    if (status == cuda_status::kOutOfMemory) {
      throw Error(ExitCode::out_of_memory, fmt::format("cannot lock {} bytes of the host's memory for the GPU", bytes),
                  context_.gpu().describe(), "free memory of this host, or start fewer ranks on it");
    }
    context_.check(status, "cuMemHostAlloc");
    return address;
  }

  void deallocate(void* address, std::int64_t) noexcept override {
    int status = context_.try_make_current();
    if (status == cuda_status::kSuccess) status = context_.driver().host_free(address);
    log_cuda(context_.driver(), status, "cuMemFreeHost");
  }

 private:
  static constexpr unsigned kPortable = 1;  // CU_MEMHOSTALLOC_PORTABLE: page-locked for every context
  const CudaContext& context_;
};

}  // namespace

CudaContext::Claim::Claim(const CudaGpu& gpu, bool shares) {
  if (shares) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "zshard-gpu-" + gpu.uuid;  // after a zero byte: in no file system
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  socket_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket_ >= 0 && bind(socket_, reinterpret_cast<const sockaddr*>(&address), length) == 0) return;
  const int error = errno;
  if (socket_ >= 0) close(socket_);
  if (error == EADDRINUSE)
    throw Error(ExitCode::config, "another rank on this host has this GPU", gpu.describe(),
                "start at most one rank for each GPU of a host");
  throw Error(ExitCode::internal, fmt::format("no socket to hold a GPU by: {}", std::generic_category().message(error)),
              gpu.describe());
}

CudaContext::Claim::~Claim() {
  if (socket_ >= 0 && close(socket_) != 0) std::perror("zshard: the socket that holds a GPU");
}

CudaContext::CudaContext(Libraries libraries, int ordinal, bool shares, const ProductOptions& products)
    : libraries_(std::move(libraries)), gpu_(gpu_of(driver(), ordinal)), claim_(gpu_, shares), products_(products) {
  check(driver().device(&device_, ordinal), "cuDeviceGet");
  check(driver().context_retain(&context_, device_), "cuDevicePrimaryCtxRetain");
  if (products.are_timed) product_choices_ = std::make_unique<ProductChoices>(*this);
}

CudaContext::~CudaContext() {
  product_choices_.reset();  // has events
  if (module_ != nullptr) {
    int status = try_make_current();
    if (status == cuda_status::kSuccess) status = driver().module_unload(module_);
    log_cuda(driver(), status, "cuModuleUnload");
  }
  log_cuda(driver(), driver().context_release(device_), "cuDevicePrimaryCtxRelease");
}

void CudaContext::load(const void* image, std::span<const std::string> names) const {
  const std::lock_guard lock(functions_mutex_);
  if (module_ != nullptr) return;
  check(driver().module_load(&module_, image), "cuModuleLoadData");
  for (const std::string& name : names) {
    CUfunc_st* function = nullptr;
    const int status = driver().module_function(&function, module_, name.c_str());
    if (status == cuda_status::kNotFound) continue;  // whoever launches it says so
    check(status, "cuModuleGetFunction", name);
    if (driver().function_load != nullptr) check(driver().function_load(function), "cuFuncLoad", name);
    functions_.insert({name, {.handle = function}});
  }
}

CUfunc_st* CudaContext::function(const std::string& name, int shared_bytes) const {
  const std::lock_guard lock(functions_mutex_);
  const auto found = functions_.find(name);
  if (found == functions_.end()) check(cuda_status::kNotFound, "cuModuleGetFunction", name);
  Function& function = found->second;
  if (shared_bytes > function.most_shared_bytes) {
    check(driver().function_attribute(function.handle, CudaDriver::kMostDynamicSharedBytes, shared_bytes),
          "cuFuncSetAttribute", name);
    function.most_shared_bytes = shared_bytes;
  }
  return function.handle;
}

void CudaContext::check(int status, const char* call, const std::string& what) const {
  if (status == cuda_status::kSuccess) return;
  check_cuda(driver(), status, call, what.empty() ? gpu_.describe() : fmt::format("{}, {}", gpu_.describe(), what));
}

void CudaContext::check_cublas(int status, const char* call, const std::string& what) const {
  if (status == cublas::kSuccess) return;
  const bool is_full = status == cublas::kAllocationFailed;
  throw CudaError(is_full ? ExitCode::out_of_memory : ExitCode::internal, status,
                  fmt::format("{} for {}: cuBLAS status {}, {}", call, what, status, cublas().status_text(status)),
                  gpu_.describe(), is_full ? "reduce the micro-batch or the model, or use more ranks" : "");
}

CudaContext::Room CudaContext::room() const {
  make_current();
  std::size_t free_bytes = 0, total_bytes = 0;
  check(driver().memory_info(&free_bytes, &total_bytes), "cuMemGetInfo");
  return {static_cast<std::int64_t>(free_bytes), static_cast<std::int64_t>(total_bytes)};
}

void CudaContext::copy(void* native_stream, const Buffer& out, const Buffer& in) const {
  ZS_CHECK(out.bytes() == in.bytes(), "{} bytes are copied to {}", in.bytes(), out.bytes());
  if (out.bytes() == 0 || out.data == in.data) return;
  const auto address_of = [](const Buffer& buffer) { return reinterpret_cast<CudaDriver::Address>(buffer.data); };
  check(driver().memory_copy(address_of(out), address_of(in), static_cast<std::size_t>(out.bytes()),
                             static_cast<CUstream_st*>(native_stream)),
        "cuMemcpyAsync");
}

void CudaContext::fill(void* native_stream, const Buffer& out, std::uint32_t word) const {
  if (out.elems == 0) return;
  check(driver().memory_set_words(reinterpret_cast<CudaDriver::Address>(out.data), word,
                                  static_cast<std::size_t>(out.elems), static_cast<CUstream_st*>(native_stream)),
        "cuMemsetD32Async");
}

MemoryLimit cuda_memory_limit(const CudaContext& context) {
  return {.bytes = context.room().free_bytes,
          .source = "free memory of " + context.gpu().describe(),
          .is_per_process = true};
}

std::unique_ptr<Allocator> make_cuda_allocator(const CudaContext& context) {
  return std::make_unique<CudaAllocator>(context);
}

std::unique_ptr<Allocator> make_cuda_allocator(const CudaContext& context, Allocator* memory, std::int64_t slab_bytes) {
  if (memory == nullptr || slab_bytes <= 0) return make_cuda_allocator(context);
  return std::make_unique<SlabAllocator>(context, *memory, slab_bytes);
}

std::unique_ptr<Allocator> make_pinned_allocator(const CudaContext& context) {
  return std::make_unique<PinnedAllocator>(context);
}

}  // namespace zs
