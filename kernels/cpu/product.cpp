#include "kernels/cpu/product.h"

#include <omp.h>

#include <algorithm>
#include <exception>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>
#include <unordered_map>

#include "kernels/cpu/host.h"

/// oneDNN, API generation 2 or 3.
namespace zs::cpu {
namespace onednn {

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

}  // namespace onednn
namespace {

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

}  // namespace

struct ProductLibrary::Slots {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  std::vector<std::unique_ptr<onednn::Slot>> slots;
};

ProductLibrary::ProductLibrary() : slots_(std::make_unique<Slots>()) {}
ProductLibrary::~ProductLibrary() = default;

void ProductLibrary::run_team(int threads, std::int64_t count, const std::string& where,
                              const std::function<void(std::int64_t, int)>& body) {
  const OneThreadScope one_thread;
  const int team = static_cast<int>(std::min<std::int64_t>(threads, count));
  while (slots_->slots.size() < static_cast<std::size_t>(team))
    slots_->slots.push_back(std::make_unique<onednn::Slot>(slots_->engine));
  std::exception_ptr failure;
#pragma omp parallel for num_threads(team) schedule(dynamic, 1) if (team > 1)
  for (std::int64_t i = 0; i < count; ++i) {
    try {
      body(i, omp_get_thread_num());
    } catch (...) {  // no exception may leave a parallel region
#pragma omp critical(zs_matmul_failure)
      failure = std::current_exception();
    }
  }
  if (!failure) return;
  try {
    std::rethrow_exception(failure);
  } catch (const dnnl::error& error) {
    throw Error(ExitCode::internal, fmt::format("oneDNN: {} (status {})", error.what(), static_cast<int>(error.status)),
                where, "run with DNNL_VERBOSE=1 and report what it prints");
  }
}

void ProductLibrary::run_primitive(int thread, const Product& p, const Block& block) {
  using namespace onednn;
  const dnnl::engine& engine = slots_->engine;
  Slot& slot = *slots_->slots[static_cast<std::size_t>(thread)];
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

void ProductLibrary::run_gemm(const Product& p, const Block& block) {
  using namespace onednn;
  const BlockStart start = start_of(p, block);
  const dnnl_status_t status =
      dnnl_sgemm(p.dims.transpose_a ? 'T' : 'N', p.dims.transpose_b ? 'T' : 'N', block.rows, block.columns, p.dims.k,
                 1.0f, reinterpret_cast<const float*>(start.a), p.a_stride(), reinterpret_cast<const float*>(start.b),
                 p.b_stride(), p.dims.beta, reinterpret_cast<float*>(start.c), p.dims.n);
  if (status != dnnl_success) throw dnnl::error(status, "dnnl_sgemm");
}

const std::byte* widen(ExecContext& ctx, std::vector<float>& room, const void* in, std::int64_t elems) {
  room.resize(static_cast<std::size_t>(elems));
  isa().cast(ctx.threads(), {room.data(), false}, {const_cast<void*>(in), true}, elems);
  return reinterpret_cast<const std::byte*>(room.data());
}

}  // namespace zs::cpu
