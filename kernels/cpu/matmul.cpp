#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <map>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "kernels/checks.h"
#include "kernels/cpu/host.h"
#include "kernels/families.h"

/// Products by oneDNN, API generation 2 or 3. Every product is cut into blocks of C whose sizes follow from its shape
/// alone; each block is one single-threaded library call, so that the bits are the same for every number of threads.
namespace zs::cpu {
namespace {

/// Operands of one product; a, b and c are dense with the strides that MatmulDims implies.
struct Product {
  const std::byte *a, *b;
  std::byte* c;
  const std::byte* bias;  // null: none
  DType operand, result, bias_dtype;
  MatmulDims dims;

  std::int64_t a_stride() const { return dims.transpose_a ? dims.m : dims.k; }
  std::int64_t b_stride() const { return dims.transpose_b ? dims.k : dims.n; }
  /// One of a batch.
  Product item(std::int64_t i) const {
    Product one = *this;
    one.a += i * dims.m * dims.k * size_of(operand);
    one.b += i * dims.k * dims.n * size_of(operand);
    one.c += i * dims.m * dims.n * size_of(result);
    return one;
  }
};

/// x W^T, as a linear layer computes it.
bool is_forward(const MatmulDims& dims) { return !dims.transpose_a && dims.transpose_b; }

/// Rows [row, row + rows) and columns [column, column + columns) of C.
struct Block {
  std::int64_t row, rows, column, columns;
};

/// True if the library multiplies bf16 by tiles (AMX), which wants larger pieces, and each operand's long side whole.
bool library_has_tiles() {
#if defined(__x86_64__)
  constexpr unsigned kNeeded = dnnl_cpu_isa_avx512_core_amx;
  static const bool has = (static_cast<unsigned>(dnnl_get_effective_cpu_isa()) & kNeeded) == kNeeded;
  return has;
#else
  return false;
#endif
}

/// A power of two at most 16 of pieces of at least 192 (smaller ones lose to packing the other operand again;
/// docs/decisions/0005).
struct Cut {
  bool by_columns;
  std::int64_t length, blocks;

  explicit Cut(const Product& p) : by_columns(cuts_columns(p)) {
    const std::int64_t side = by_columns ? p.dims.n : p.dims.m, most = is_tiled(p) ? 8 : 16;
    std::int64_t pieces = 1;
    while (pieces < most && side / (2 * pieces) >= 192) pieces *= 2;
    length = round_up((side + pieces - 1) / pieces, 16);
    blocks = (side + length - 1) / length;
  }
  Block block(const MatmulDims& dims, std::int64_t i) const {
    const std::int64_t first = i * length;
    if (by_columns) return {0, dims.m, first, std::min(length, dims.n - first)};
    return {first, std::min(length, dims.m - first), 0, dims.n};
  }

 private:
  static bool is_tiled(const Product& p) { return p.operand == DType::bf16 && library_has_tiles(); }
  /// Along the longer side of C; by tiles a forward pass along its tokens where these are enough, and never along the
  /// shorter inner side.
  static bool cuts_columns(const Product& p) {
    const MatmulDims& d = p.dims;
    if (is_tiled(p) && is_forward(d)) return d.m < 512;
    if (is_tiled(p) && !d.transpose_a && d.k > 2 * d.n) return true;
    return d.n > d.m;
  }
};

dnnl::memory::data_type library_dtype(DType dtype) {
  return dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

struct PrimitiveKey {
  std::int64_t rows, columns;
  MatmulDims dims;
  DType operand, result, bias_dtype;
  bool has_bias;

  auto tie() const {
    return std::tuple(rows, columns, dims.m, dims.n, dims.k, dims.transpose_a, dims.transpose_b, dims.beta, operand,
                      result, bias_dtype, has_bias);
  }
  bool operator<(const PrimitiveKey& other) const { return tie() < other.tie(); }
};

struct Primitive {
  dnnl::matmul matmul;
  dnnl::memory a, b, c, bias, scratchpad;
};

/// Slot that one thread of the team keeps: primitives run on the thread that made them.
struct Slot {
  explicit Slot(const dnnl::engine& engine) : stream(engine) {}
  dnnl::stream stream;
  std::map<PrimitiveKey, Primitive> primitives;
  std::vector<std::byte> scratchpad;
};

/// One per stream.
struct Library {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  std::vector<std::unique_ptr<Slot>> slots;
  std::vector<float> a, b, c, bias;  // f32 copies where bf16 products are missing
};

Primitive make_primitive(const dnnl::engine& engine, const PrimitiveKey& key) {
  using dnnl::memory;
  const MatmulDims& d = key.dims;
  const memory::dims a_strides = d.transpose_a ? memory::dims{1, d.m} : memory::dims{d.k, 1};
  const memory::dims b_strides = d.transpose_b ? memory::dims{1, d.k} : memory::dims{d.n, 1};
  const memory::desc a({key.rows, d.k}, library_dtype(key.operand), a_strides),
      b({d.k, key.columns}, library_dtype(key.operand), b_strides);
  const memory::desc c({key.rows, key.columns}, library_dtype(key.result), memory::dims{d.n, 1});
  const memory::desc bias =
      key.has_bias ? memory::desc({1, key.columns}, library_dtype(key.bias_dtype), memory::dims{key.columns, 1})
                   : memory::desc();
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (d.beta != 0) {
    dnnl::post_ops accumulate;
    accumulate.append_sum(1.0f);
    attributes.set_post_ops(accumulate);
  }
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::matmul::primitive_desc description(engine, a, b, bias, c, attributes);
#else
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, bias, c), attributes, engine);
#endif
  Primitive primitive;
  primitive.matmul = dnnl::matmul(description);
  primitive.a = memory(a, engine, nullptr);
  primitive.b = memory(b, engine, nullptr);
  primitive.c = memory(c, engine, nullptr);
  if (key.has_bias) primitive.bias = memory(bias, engine, nullptr);
  primitive.scratchpad = memory(description.scratchpad_desc(), engine, nullptr);
  return primitive;
}

/// Addresses where a block's operands start.
struct BlockStart {
  std::byte *a, *b, *c, *bias;
};

BlockStart start_of(const Product& p, const Block& block) {
  const std::int64_t a = p.dims.transpose_a ? block.row : block.row * p.a_stride();
  const std::int64_t b = p.dims.transpose_b ? block.column * p.b_stride() : block.column;
  const std::int64_t in = size_of(p.operand), out = size_of(p.result);
  return {const_cast<std::byte*>(p.a) + a * in, const_cast<std::byte*>(p.b) + b * in,
          p.c + (block.row * p.dims.n + block.column) * out,
          p.bias != nullptr ? const_cast<std::byte*>(p.bias) + block.column * size_of(p.bias_dtype) : nullptr};
}

void run_primitive(const dnnl::engine& engine, Slot& slot, const Product& p, const Block& block) {
  const PrimitiveKey key{block.rows, block.columns, p.dims, p.operand, p.result, p.bias_dtype, p.bias != nullptr};
  auto found = slot.primitives.find(key);
  if (found == slot.primitives.end()) found = slot.primitives.emplace(key, make_primitive(engine, key)).first;
  Primitive& primitive = found->second;
  const BlockStart start = start_of(p, block);
  const std::size_t needed = primitive.scratchpad.get_desc().get_size();
  if (slot.scratchpad.size() < needed + 64) slot.scratchpad.resize(needed + 64);
  void* scratchpad = slot.scratchpad.data();
  std::size_t room = slot.scratchpad.size();
  primitive.a.set_data_handle(start.a);
  primitive.b.set_data_handle(start.b);
  primitive.c.set_data_handle(start.c);
  primitive.scratchpad.set_data_handle(std::align(64, needed, scratchpad, room));
  std::unordered_map<int, dnnl::memory> args = {{DNNL_ARG_SRC, primitive.a},
                                                {DNNL_ARG_WEIGHTS, primitive.b},
                                                {DNNL_ARG_DST, primitive.c},
                                                {DNNL_ARG_SCRATCHPAD, primitive.scratchpad}};
  if (start.bias != nullptr) {
    primitive.bias.set_data_handle(start.bias);
    args.emplace(DNNL_ARG_BIAS, primitive.bias);
  }
  primitive.matmul.execute(slot.stream, args);
  slot.stream.wait();
}

void run_gemm(const Product& p, const Block& block) {
  const BlockStart start = start_of(p, block);
  const dnnl_status_t status =
      dnnl_sgemm(p.dims.transpose_a ? 'T' : 'N', p.dims.transpose_b ? 'T' : 'N', block.rows, block.columns, p.dims.k,
                 1.0f, reinterpret_cast<const float*>(start.a), p.a_stride(), reinterpret_cast<const float*>(start.b),
                 p.b_stride(), p.dims.beta, reinterpret_cast<float*>(start.c), p.dims.n);
  if (status != dnnl_success) throw dnnl::error(status, "dnnl_sgemm");
}

/// Measured with oneDNN 2.6: the gemm call is the faster one, except for f32 a * b transposed (the forward pass of a
/// linear layer).
bool prefers_gemm(const Product& p) { return p.operand == DType::f32 && p.bias == nullptr && !is_forward(p.dims); }

/// While it lives, a library call made by this thread or by a team that it starts uses one thread.
class OneThreadScope {
 public:
  OneThreadScope() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThreadScope() { omp_set_num_threads(before_); }
  OneThreadScope(const OneThreadScope&) = delete;
  OneThreadScope& operator=(const OneThreadScope&) = delete;

 private:
  int before_;
};

void run_product(Library& library, int threads, const Product& p) {
  const OneThreadScope one_thread;
  const Cut cut(p);
  const std::int64_t blocks = p.dims.batch * cut.blocks;
  const int team = static_cast<int>(std::min<std::int64_t>(threads, blocks));
  while (library.slots.size() < static_cast<std::size_t>(team))
    library.slots.push_back(std::make_unique<Slot>(library.engine));
  std::exception_ptr failure;
#pragma omp parallel for num_threads(team) schedule(dynamic, 1) if (team > 1)
  for (std::int64_t i = 0; i < blocks; ++i) {
    try {
      const Block block = cut.block(p.dims, i % cut.blocks);
      const Product one = p.item(i / cut.blocks);
      if (prefers_gemm(p)) {
        run_gemm(one, block);
      } else {
        run_primitive(library.engine, *library.slots[static_cast<std::size_t>(omp_get_thread_num())], one, block);
      }
    } catch (...) {  // no exception may leave a parallel region
#pragma omp critical(zs_matmul_failure)
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

const std::byte* widen(ExecContext& ctx, std::vector<float>& room, const void* in, std::int64_t elems) {
  room.resize(static_cast<std::size_t>(elems));
  isa().cast(ctx.threads(), {room.data(), false}, {const_cast<void*>(in), true}, elems);
  return reinterpret_cast<const std::byte*>(room.data());
}

/// The product of bf16 operands by way of f32 copies.
void run_widened(ExecContext& ctx, Library& library, Product p) {
  const MatmulDims& d = p.dims;
  const Product narrow = p;
  p.operand = p.result = DType::f32;
  p.a = widen(ctx, library.a, p.a, d.batch * d.m * d.k);
  p.b = widen(ctx, library.b, p.b, d.batch * d.k * d.n);
  if (p.bias != nullptr && p.bias_dtype == DType::bf16) {
    p.bias = widen(ctx, library.bias, p.bias, d.n);
    p.bias_dtype = DType::f32;
  }
  if (narrow.result == DType::bf16) {
    if (d.beta != 0) widen(ctx, library.c, p.c, d.batch * d.m * d.n);
    library.c.resize(static_cast<std::size_t>(d.batch * d.m * d.n));
    p.c = reinterpret_cast<std::byte*>(library.c.data());
  }
  run_product(library, ctx.threads(), p);
  if (narrow.result == DType::bf16) isa().cast(ctx.threads(), {narrow.c, true}, {p.c, false}, d.batch * d.m * d.n);
}

Product checked(const Buffer& c, const Buffer& a, const Buffer& b, const Buffer& bias, const MatmulDims& d) {
  checks::matmul(c, a, b, bias, d);
  for (const Buffer* buffer : {&a, &b, &c}) data_of(*buffer);
  return {.a = static_cast<const std::byte*>(a.data),
          .b = static_cast<const std::byte*>(b.data),
          .c = static_cast<std::byte*>(c.data),
          .bias = bias.empty() ? nullptr : static_cast<const std::byte*>(bias.data),
          .operand = a.dtype,
          .result = c.dtype,
          .bias_dtype = bias.empty() ? DType::f32 : bias.dtype,
          .dims = d};
}

bool library_has_bf16() {
#if defined(__x86_64__)
  constexpr unsigned kNeeded = dnnl_cpu_isa_avx512_core_bf16;
  return __builtin_cpu_supports("avx512bf16") &&
         (static_cast<unsigned>(dnnl_get_effective_cpu_isa()) & kNeeded) == kNeeded;
#else
  return false;
#endif
}

void matmul(ExecContext& ctx, Buffer c, Buffer a, Buffer b, Buffer bias, const MatmulDims& dims) {
  if (c.empty()) return;
  const Product product = checked(c, a, b, bias, dims);
  if (checks::is_empty_sum(bias, dims)) return dims.beta == 0 ? cpu_kernels().zero(ctx, c) : void();
  try {
    Library& library = ctx.state<Library>();
    if (product.operand == DType::bf16 && !cpu_has_bf16_products()) {
      run_widened(ctx, library, product);
    } else {
      run_product(library, ctx.threads(), product);
    }
  } catch (const dnnl::error& error) {
    throw Error(ExitCode::internal, fmt::format("oneDNN: {} (status {})", error.what(), static_cast<int>(error.status)),
                fmt::format("product m {}, n {}, k {}", dims.m, dims.n, dims.k),
                "run with DNNL_VERBOSE=1 and report what it prints");
  }
}

}  // namespace

void fill_matmul(KernelTable& table) {
  table.scratch.matmul = [](const MatmulDims&) { return std::int64_t{0}; };  // the library keeps its own
  table.matmul = matmul;
}

}  // namespace zs::cpu

namespace zs {

bool cpu_has_bf16_products() {
  static const std::string_view isa = cpu_isa();
  static const bool has = (isa == "amx" || isa == "avx512") && cpu::library_has_bf16();
  return has;
}

}  // namespace zs
