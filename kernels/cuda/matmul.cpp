#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/checks.h"
#include "kernels/cuda/launch.h"
#include "kernels/families.h"
#include "runtime/device/product_choices.h"
#include "runtime/device/stream_watch.h"

/// Products by cuBLASLt. It stores matrices by columns, so what it is asked for is the transpose: C^T (n, m) = B'^T
/// A'^T, of the same bytes, with b as its first operand and a as its second. The bias, one number for each column of C,
/// is then one for each row, as it wants it. GELU, and its gradient, are computed before the sums are stored where the
/// library has an algorithm for that, else by kernels of their own: which of the two follows from the shape, the dtypes
/// and the addresses' alignment, and is asked for once.
namespace zs::cuda {
namespace {

/// Workspace that NVIDIA recommends for the GPUs that want most; the library's algorithms may need less.
constexpr std::int64_t kWorkspaceBytes = std::int64_t{32} << 20;
/// Alignment of the workspace, and the most that an algorithm asks of an operand.
constexpr std::int64_t kAlignment = 256;
/// The library reads a bias in packs.
constexpr std::uintptr_t kBiasAlignment = 16;
/// Alignment of GELU's input, likewise, whose rows are so many elements long, or a multiple.
constexpr std::uintptr_t kAuxAlignment = 16;
constexpr std::int64_t kAuxStride = 8;
/// Compute capability from which on GELU is fused: on 8.0 others found products with GELU slower than a kernel of its
/// own (docs/decisions/0037).
constexpr int kFusesFrom = 9;

/// Room for a bias that cannot be read where it lies.
std::int64_t bias_bytes(const MatmulDims& dims) {
  return (dims.n * size_of(DType::f32) + kAlignment - 1) / kAlignment * kAlignment;
}

int alignment_of(const void* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address) | static_cast<std::uintptr_t>(kAlignment);
  return static_cast<int>(bits & -bits);
}

int library_dtype(DType dtype) { return dtype == DType::bf16 ? cublas::kBf16 : cublas::kF32; }

std::string describe(const MatmulDims& d) { return fmt::format("the product m {}, n {}, k {}", d.m, d.n, d.k); }

/// Function that is applied to the sums before they are stored.
enum class Activation : std::uint8_t { none, gelu, gelu_gradient };

/// All that an algorithm is chosen by; beta is not.
struct ProductKey {
  MatmulDims dims;
  DType operand, result;
  bool has_bias;
  Activation activation;
  int a_alignment, b_alignment, c_alignment;

  auto tie() const {
    return std::tuple(dims.m, dims.n, dims.k, dims.transpose_a, dims.transpose_b, operand, result, has_bias, activation,
                      a_alignment, b_alignment, c_alignment);
  }
  int epilogue() const {
    if (activation == Activation::gelu_gradient) return cublas::kGeluGradientEpilogue;
    if (activation == Activation::gelu) return has_bias ? cublas::kGeluBiasEpilogue : cublas::kGeluEpilogue;
    return has_bias ? cublas::kBiasEpilogue : cublas::kPlainEpilogue;
  }
  bool operator<(const ProductKey& other) const { return tie() < other.tie(); }
  /// Text of the key for ProductChoices.
  std::string text(bool has_tf32) const {
    constexpr const char* kActivations[] = {"", ", GELU", ", GELU's gradient"};
    return fmt::format("m {}, n {}, k {}{}{}, {} to {}{}{}{}, aligned {} {} {}", dims.m, dims.n, dims.k,
                       dims.transpose_a ? ", a transposed" : "", dims.transpose_b ? ", b transposed" : "",
                       name_of(operand), name_of(result), has_tf32 && operand == DType::f32 ? " by tf32" : "",
                       has_bias ? ", bias" : "", kActivations[static_cast<int>(activation)], a_alignment, b_alignment,
                       c_alignment);
  }
};

/// The library as one GPU has it: calls whose status is read.
class Library {
 public:
  explicit Library(const CudaContext& gpu, const std::string& what) : gpu_(&gpu), table_(&gpu.cublas()), what_(&what) {}

  const CublasLt& table() const { return *table_; }
  bool has_tf32() const { return gpu_->products().tf32; }
  void check(int status, const char* call) const { gpu_->check_cublas(status, call, *what_); }

 private:
  const CudaContext* gpu_;
  const CublasLt* table_;
  const std::string* what_;
};

void log_cublas(const CublasLt& table, int status, const char* call) noexcept {
  if (status == cublas::kSuccess) return;
  std::fprintf(stderr, "zshard: %s: cuBLAS status %d, %s\n", call, status, table.status_text(status));
}

/// Owns one of the library's objects.
template <class T, int (*CublasLt::*kDestroy)(T*)>
struct Destroy {
  const CublasLt* table;
  const char* call;
  void operator()(T* object) const noexcept { log_cublas(*table, (table->*kDestroy)(object), call); }
};
template <class T, int (*CublasLt::*kDestroy)(T*)>
using Owned = std::unique_ptr<T, Destroy<T, kDestroy>>;
using Handle = Owned<CublasLt::Handle, &CublasLt::destroy>;
using Operation = Owned<CublasLt::Operation, &CublasLt::operation_destroy>;
using Layout = Owned<CublasLt::Layout, &CublasLt::layout_destroy>;
using Preference = Owned<CublasLt::Preference, &CublasLt::preference_destroy>;

Operation make_operation(const Library& library, const ProductKey& key) {
  const CublasLt& table = library.table();
  const bool is_tf32 = key.operand == DType::f32 && library.has_tf32();
  CublasLt::Operation* made = nullptr;
  library.check(table.operation_create(&made, is_tf32 ? cublas::kComputeTf32 : cublas::kComputeF32, cublas::kF32),
                "cublasLtMatmulDescCreate");
  Operation operation(made, {&table, "cublasLtMatmulDescDestroy"});
  const auto set = [&](int attribute, const auto& value) {
    library.check(table.operation_set(made, attribute, &value, sizeof(value)), "cublasLtMatmulDescSetAttribute");
  };
  if (key.dims.transpose_b) set(cublas::kTransposeA, cublas::kTransposed);
  if (key.dims.transpose_a) set(cublas::kTransposeB, cublas::kTransposed);
  set(cublas::kEpilogue, key.epilogue());
  if (key.has_bias) set(cublas::kBiasType, library_dtype(key.result));
  if (key.activation != Activation::none) {
    set(cublas::kAuxType, library_dtype(key.result));
    set(cublas::kAuxStride, key.dims.n);
  }
  return operation;
}

/// Layout of a row-major matrix (rows, columns).
Layout make_layout(const Library& library, DType dtype, std::int64_t rows, std::int64_t columns) {
  CublasLt::Layout* made = nullptr;
  library.check(library.table().layout_create(&made, library_dtype(dtype), static_cast<std::uint64_t>(columns),
                                              static_cast<std::uint64_t>(rows), columns),
                "cublasLtMatrixLayoutCreate");
  return Layout(made, {&library.table(), "cublasLtMatrixLayoutDestroy"});
}

Preference make_preference(const Library& library, const ProductKey& key) {
  const CublasLt& table = library.table();
  CublasLt::Preference* made = nullptr;
  library.check(table.preference_create(&made), "cublasLtMatmulPreferenceCreate");
  Preference preference(made, {&table, "cublasLtMatmulPreferenceDestroy"});
  const auto set = [&](int attribute, const auto& value) {
    library.check(table.preference_set(made, attribute, &value, sizeof(value)), "cublasLtMatmulPreferenceSetAttribute");
  };
  set(cublas::kMostWorkspace, static_cast<std::uint64_t>(kWorkspaceBytes));
  set(cublas::kAlignmentA, static_cast<std::uint32_t>(key.b_alignment));
  set(cublas::kAlignmentB, static_cast<std::uint32_t>(key.a_alignment));
  set(cublas::kAlignmentC, static_cast<std::uint32_t>(key.c_alignment));
  set(cublas::kAlignmentD, static_cast<std::uint32_t>(key.c_alignment));
  return preference;
}

/// A product that the library has been asked about, and may not have (is_found).
struct Product {
  /// `wanted`: so many candidates, at most.
  Product(const Library& library, CublasLt::Handle* handle, const ProductKey& key, int wanted)
      : operation(make_operation(library, key)),
        a(make_layout(library, key.operand, key.dims.transpose_a ? key.dims.k : key.dims.m,
                      key.dims.transpose_a ? key.dims.m : key.dims.k)),
        b(make_layout(library, key.operand, key.dims.transpose_b ? key.dims.n : key.dims.k,
                      key.dims.transpose_b ? key.dims.k : key.dims.n)),
        c(make_layout(library, key.result, key.dims.m, key.dims.n)) {
    // An address must stand for the bias, or GELU's input, that there will be, aligned no better than the worst; nobody
    // reads there.
    if (key.has_bias) set_pointer(library, cublas::kBiasPointer, reinterpret_cast<const void*>(kBiasAlignment));
    if (key.activation != Activation::none)
      set_pointer(library, cublas::kAuxPointer, reinterpret_cast<const void*>(kAuxAlignment));
    const Preference preference = make_preference(library, key);
    int found = 0;
    candidates.resize(static_cast<std::size_t>(wanted));
    const int status = library.table().find_algorithms(handle, operation.get(), b.get(), a.get(), c.get(), c.get(),
                                                       preference.get(), wanted, candidates.data(), &found);
    is_found = status != cublas::kNotSupported && (status != cublas::kSuccess || found > 0);
    if (!is_found) return;
    library.check(status, "cublasLtMatmulAlgoGetHeuristic");
    candidates.resize(static_cast<std::size_t>(found));
    chosen = candidates.front();
    library.check(chosen.status, "cublasLtMatmulAlgoGetHeuristic");
  }
  void set_pointer(const Library& library, int attribute, const void* address) const {
    library.check(library.table().operation_set(operation.get(), attribute, &address, sizeof(address)),
                  "cublasLtMatmulDescSetAttribute");
  }

  Operation operation;
  Layout a, b, c;
  std::vector<CublasLt::Candidate> candidates;
  CublasLt::Candidate chosen{};  // the first of them, if nobody chooses another
  bool is_found = false, is_settled = false;
  bool is_timed = false;  // or was, by an earlier run
};

/// One per stream: the algorithm of each shape, asked for once.
class Products {
 public:
  /// `choices`: null where products are not timed.
  Product& get(const Library& library, const ProductKey& key, ProductChoices* choices) {
    make_handle(library);
    auto found = products_.find(key);
    if (found == products_.end()) {
      const int wanted = choices != nullptr ? ProductChoices::kCandidates : 1;
      found = products_.emplace(key, std::make_unique<Product>(library, handle_.get(), key, wanted)).first;
    }
    Product& product = *found->second;
    if (choices == nullptr || product.is_settled) return product;
    product.is_settled = !choices->are_open();
    if (const CublasLt::Candidate* chosen = choices->chosen(key.text(library.has_tf32()))) {
      product.chosen = *chosen;
      product.is_timed = true;
    }
    return product;
  }
  CublasLt::Handle* handle() const { return handle_.get(); }

 private:
  void make_handle(const Library& library) {
    if (handle_) return;
    CublasLt::Handle* made = nullptr;
    library.check(library.table().create(&made), "cublasLtCreate");
    handle_ = Handle(made, {&library.table(), "cublasLtDestroy"});
  }

  Handle handle_{nullptr, {}};
  std::map<ProductKey, std::unique_ptr<Product>> products_;  // dies before the handle
};

/// The stream's scratch as a product uses it: the library's workspace, then the bias.
struct Room {
  std::byte* workspace;
  void* bias;

  Room(ExecContext& ctx, std::int64_t workspace_bytes, std::int64_t bias_bytes) {
    const auto address = reinterpret_cast<std::uintptr_t>(ctx.scratch(workspace_bytes + bias_bytes + kAlignment));
    workspace = reinterpret_cast<std::byte*>((address + kAlignment - 1) / kAlignment * kAlignment);
    bias = workspace + (workspace_bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
};

/// GELU's input, or what takes it; empty: neither.
struct Aux {
  Activation activation = Activation::none;
  Buffer buffer = {};
};

bool overlap(const Buffer& a, const Buffer& b) {
  const auto* const at = static_cast<const std::byte*>(a.data);
  const auto* const other = static_cast<const std::byte*>(b.data);
  return std::less<>()(at, other + b.bytes()) && std::less<>()(other, at + a.bytes());
}

/// True if the product gives the same when it is computed again.
bool may_repeat(const MatmulBuffers& p, const Aux& aux, const MatmulDims& dims) {
  const bool writes_aux = aux.activation == Activation::gelu;
  for (const Buffer* in : {&p.a, &p.b, &p.bias})
    if (overlap(*in, p.c) || (writes_aux && overlap(*in, aux.buffer))) return false;
  return dims.beta == 0 && (writes_aux || !overlap(aux.buffer, p.c));
}

/// Enqueues the product if the library has it; true then.
bool try_multiply(ExecContext& ctx, const MatmulBuffers& p, const Aux& aux, const MatmulDims& dims) {
  const std::string what = describe(dims);
  const Library library(ctx.gpu(), what);
  const ProductKey key{dims,
                       p.a.dtype,
                       p.c.dtype,
                       !p.bias.empty(),
                       aux.activation,
                       alignment_of(p.a.data),
                       alignment_of(p.b.data),
                       alignment_of(p.c.data)};
  auto& products = ctx.state<Products>();
  ProductChoices* const choices = ctx.gpu().product_choices();
  Product& product = products.get(library, key, choices);
  if (!product.is_found) return false;
  const bool is_timed_now = choices != nullptr && choices->are_open() && !product.is_timed &&
                            !ctx.state<StreamWatches>().are_captured() && may_repeat(p, aux, dims);
  const bool moves_bias = key.has_bias && (p.bias.dtype != p.c.dtype ||
                                           reinterpret_cast<std::uintptr_t>(p.bias.data) % kBiasAlignment != 0);
  std::size_t workspace_bytes = product.chosen.workspace_bytes;
  if (is_timed_now)
    for (const CublasLt::Candidate& one : product.candidates)
      workspace_bytes = std::max(workspace_bytes, one.workspace_bytes);
  const Room room(ctx, static_cast<std::int64_t>(workspace_bytes), moves_bias ? bias_bytes(dims) : 0);
  if (moves_bias) cuda_kernels().cast(ctx, {room.bias, dims.n, p.c.dtype, p.c.device}, p.bias);
  if (key.has_bias) product.set_pointer(library, cublas::kBiasPointer, moves_bias ? room.bias : p.bias.data);
  if (!aux.buffer.empty()) product.set_pointer(library, cublas::kAuxPointer, aux.buffer.data);
  const auto multiply = [&](const CublasLt::Candidate& by) {
    constexpr float kOne = 1.0f;
    return library.table().multiply(products.handle(), product.operation.get(), &kOne, p.b.data, product.b.get(),
                                    p.a.data, product.a.get(), &dims.beta, p.c.data, product.c.get(), p.c.data,
                                    product.c.get(), &by.algorithm, room.workspace, by.workspace_bytes, stream_of(ctx));
  };
  if (is_timed_now) choices->time(key.text(library.has_tf32()), product.candidates, stream_of(ctx), multiply);
  product.is_timed |= is_timed_now;
  library.check(multiply(product.chosen), "cublasLtMatmul");
  return true;
}

void check_memory(const MatmulBuffers& p) {
  for (const Buffer* buffer : {&p.a, &p.b, &p.c}) elements_of(*buffer);
}

/// True if the library is asked at all. In f32 it is not: nobody says how exact its tanh is.
bool may_fuse(ExecContext& ctx, const Buffer& aux, const MatmulDims& dims) {
  const CudaContext& gpu = ctx.gpu();
  return gpu.products().fuses_gelu && gpu.gpu().major >= kFusesFrom && aux.dtype == DType::bf16 &&
         dims.n % kAuxStride == 0 && reinterpret_cast<std::uintptr_t>(aux.data) % kAuxAlignment == 0;
}

std::int64_t matmul_scratch(const MatmulDims& dims) { return kWorkspaceBytes + bias_bytes(dims) + kAlignment; }

void matmul(ExecContext& ctx, Buffer c, Buffer a, Buffer b, Buffer bias, const MatmulDims& dims) {
  if (c.empty()) return;
  checks::matmul(c, a, b, bias, dims);
  if (dims.batch > 1) {
    MatmulDims one = dims;
    one.batch = 1;
    for (std::int64_t i = 0; i < dims.batch; ++i)
      matmul(ctx, c.slice(i * dims.m * dims.n, dims.m * dims.n), a.slice(i * dims.m * dims.k, dims.m * dims.k),
             b.slice(i * dims.k * dims.n, dims.k * dims.n), {}, one);
    return;
  }
  const MatmulBuffers product{c, a, b, bias};
  check_memory(product);
  if (checks::is_empty_sum(bias, dims)) return dims.beta == 0 ? cuda_kernels().zero(ctx, c) : void();
  if (try_multiply(ctx, product, {}, dims)) return;
  throw Error(ExitCode::internal, fmt::format("cuBLASLt has no algorithm for {}", describe(dims)),
              ctx.gpu().gpu().describe(), "update CUDA's libcublasLt, or make the sizes multiples of 8");
}

void matmul_gelu(ExecContext& ctx, Buffer y, const MatmulBuffers& product, const MatmulDims& dims) {
  if (y.empty()) return;
  checks::matmul_gelu(product, y, dims);
  check_memory(product);
  elements_of(y);
  const MatmulBuffers fused{y, product.a, product.b, product.bias};
  if (may_fuse(ctx, product.c, dims) && try_multiply(ctx, fused, {Activation::gelu, product.c}, dims)) return;
  matmul(ctx, product.c, product.a, product.b, product.bias, dims);
  cuda_kernels().gelu_forward(ctx, y, product.c, GeluKind::tanh);
}

void matmul_gelu_backward(ExecContext& ctx, Buffer x, const MatmulBuffers& product, const MatmulDims& dims) {
  if (x.empty()) return;
  checks::matmul_gelu(product, x, dims);
  ZS_CHECK(product.bias.empty(), "a bias of {} elements beside GELU's gradient", product.bias.elems);
  check_memory(product);
  elements_of(x);
  if (may_fuse(ctx, x, dims) && try_multiply(ctx, product, {Activation::gelu_gradient, x}, dims)) return;
  matmul(ctx, product.c, product.a, product.b, {}, dims);
  cuda_kernels().gelu_backward(ctx, product.c, product.c, x, GeluKind::tanh);
}

}  // namespace

void fill_matmul(KernelTable& table, KernelNames&) {
  table.scratch.matmul = matmul_scratch;
  table.matmul = matmul;
  table.matmul_gelu = matmul_gelu;
  table.matmul_gelu_backward = matmul_gelu_backward;
}

}  // namespace zs::cuda
