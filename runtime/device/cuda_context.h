#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "runtime/device/allocator.h"
#include "runtime/device/cublas_lt.h"
#include "runtime/device/cuda_gpu.h"
#include "runtime/device/memory_limit.h"
#include "runtime/device/nvtx.h"

namespace zs {

class ProductChoices;

/// Options of products on a GPU, as DeviceOptions has them.
struct ProductOptions {
  bool tf32 = false, fuses_gelu = true, are_timed = false;
};

/// A GPU held by this rank: its primary context, which cuBLAS and NCCL in the same process use too, and the right to
/// it. Two holders of one GPU on this host, in one process or in two, are an Error(config), unless they share it: who
/// shares neither asks nor is seen. Owned by the device; outlives all that was made in it. Any thread.
class CudaContext {
 public:
  /// Libraries whose functions are called. Without `cublas` there are no products.
  struct Libraries {
    // NOLINTNEXTLINE(google-explicit-constructor): a list of them is one
    Libraries(std::shared_ptr<const CudaDriver> its_driver, std::shared_ptr<const CublasLt> its_cublas = nullptr,
              const Nvtx* its_profiler = nullptr)
        : driver(std::move(its_driver)), cublas(std::move(its_cublas)), profiler(its_profiler) {}
    std::shared_ptr<const CudaDriver> driver;
    std::shared_ptr<const CublasLt> cublas;
    const Nvtx* profiler;  ///< null: none is attached
  };
  CudaContext(Libraries libraries, int ordinal, bool shares, const ProductOptions& products = {});
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  const CudaDriver& driver() const { return *libraries_.driver; }
  const CublasLt& cublas() const {
    ZS_CHECK(libraries_.cublas != nullptr, "a product on {}, whose device was made without cuBLASLt", gpu_.describe());
    return *libraries_.cublas;
  }
  /// Profiler whose ranges have the names of ops; null: nobody's.
  const Nvtx* profiler() const { return libraries_.profiler; }
  const ProductOptions& products() const { return products_; }
  /// Null where products are not timed. The device's host thread only.
  ProductChoices* product_choices() const { return product_choices_.get(); }
  const CudaGpu& gpu() const { return gpu_; }
  /// Makes the context the calling thread's: comes before any call that makes, uses or frees something.
  void make_current() const { check(try_make_current(), "cuCtxSetCurrent"); }
  /// Makes the context current without an exception; returns the driver's code.
  int try_make_current() const noexcept { return driver().context_make_current(context_); }
  /// Reads a return code: see check_cuda. `what` is added to the GPU's name.
  void check(int status, const char* call, const std::string& what = {}) const;
  /// Reads a return code of cuBLASLt, otherwise as check.
  void check_cublas(int status, const char* call, const std::string& what) const;
  /// Loads the program's image, and those of `names` that it has; only the first call does anything, for all streams:
  /// the driver may wait for the GPU meanwhile, which must not wait for another GPU then. The context is current.
  /// `names` outlive it.
  void load(const void* image, std::span<const std::string> names) const;
  /// Function of the loaded images, which may be launched with so much dynamic shared memory.
  CUfunc_st* function(const std::string& name, int shared_bytes) const;
  /// Memory of the GPU that nobody has taken yet, and all that there is, in bytes.
  struct Room {
    std::int64_t free_bytes, total_bytes;
  };
  Room room() const;
  /// Enqueues out := in, bytes of the GPU's memory or of the host's, on a stream of the driver. The context is current.
  void copy(void* native_stream, const Buffer& out, const Buffer& in) const;
  /// Enqueues out := `word`, the bits of each of its elements of 4 bytes, otherwise as copy.
  void fill(void* native_stream, const Buffer& out, std::uint32_t word) const;

 private:
  /// A name that only one socket of the host can have, and that goes with its process, however that ends.
  class Claim {
   public:
    Claim(const CudaGpu& gpu, bool shares);
    ~Claim();
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;

   private:
    int socket_ = -1;
  };

  Libraries libraries_;
  CudaGpu gpu_;
  Claim claim_;
  const ProductOptions products_;
  std::unique_ptr<ProductChoices> product_choices_;
  int device_ = 0;
  CUctx_st* context_ = nullptr;
  struct Function {
    CUfunc_st* handle;
    int most_shared_bytes = 48 << 10;  // shared memory that every function may use
  };
  mutable std::mutex functions_mutex_;
  mutable CUmod_st* module_ = nullptr;
  mutable std::map<std::string_view, Function> functions_;
};

/// Limit of the GPU's memory: what of it is free now.
MemoryLimit cuda_memory_limit(const CudaContext& context);

/// Memory of the GPU, 256-byte aligned, not initialised. `context` outlives it.
std::unique_ptr<Allocator> make_cuda_allocator(const CudaContext& context);
/// Memory of the GPU, as above, except that the first block of at least so many bytes comes from `memory`, which
/// outlives it, where that has it to give.
std::unique_ptr<Allocator> make_cuda_allocator(const CudaContext& context, Allocator* memory, std::int64_t slab_bytes);
/// Memory of this host that the GPU reaches by the same address, page-locked. `context` outlives it.
std::unique_ptr<Allocator> make_pinned_allocator(const CudaContext& context);

}  // namespace zs
