#include "kernels/cudnn.h"

#ifdef ZSHARD_CUDNN
#include <cuda_runtime_api.h>
#include <cudnn_frontend.h>

#include <algorithm>
#include <cmath>
#include <compare>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "kernels/checks.h"
#include "kernels/cuda/launch.h"
#include "runtime/base/standard_streams.h"
#include "runtime/device/cuda_context.h"
#include "runtime/device/shared_library.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // through which the headers find cuDNN's functions
}
#endif

namespace zs {

#ifdef ZSHARD_CUDNN
namespace cuda {
namespace {

namespace fe = cudnn_frontend;

/// Before 9.16 the headers copy lengths from the host's memory in every call, which no graph of a step could replay.
constexpr std::size_t kLeastVersion = 91600;
constexpr std::uintptr_t kAlignment = 256;  // alignment of the workspace

/// The tensors of a graph, whose addresses are given at each call.
enum Id : std::int64_t { kQueries = 1, kKeys, kValues, kOut, kLse, kOutGrad, kQueriesGrad, kKeysGrad, kValuesGrad };
using Addresses = std::unordered_map<std::int64_t, void*>;

struct Shape {
  std::int64_t batch, time, heads, kv_heads, head_dim;
  bool is_backward;
  auto operator<=>(const Shape&) const = default;

  std::int64_t out_width() const { return heads * head_dim; }
  std::int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_dim; }
};

Shape shape_of(const AttentionDims& dims, bool is_backward) {
  return {dims.batch, dims.time, dims.heads, kv_heads_of(dims), dims.head_dim, is_backward};
}

std::string describe(const Shape& s) {
  return fmt::format("{} of {} x {}, {} heads on {} of {}", s.is_backward ? "backward" : "forward", s.batch, s.time,
                     s.heads, s.kv_heads, s.head_dim);
}

/// True if cuDNN is asked at all; the dtype and alignment come with the buffers.
bool may_take(const AttentionDims& dims) {
  return (dims.head_dim == 64 || dims.head_dim == 128) && dims.batch > 0 && dims.time > 1 &&
         window_of(dims) == dims.time;
}

/// Workspace that engines of 9.19 take for compute capabilities 8.0 to 12.0, and something for alignment: backward has
/// gradients of queries in f32, a copy of them on some GPUs, two numbers a row, and gradients of keys and values for
/// each query head where heads share them; they pad sequences. A plan that wants more is not used.
std::int64_t workspace_bytes(const AttentionDims& dims) {
  constexpr std::int64_t kPadding = 64, kSlack = 4096;
  const std::int64_t time = (dims.time + kPadding - 1) / kPadding * kPadding;
  const std::int64_t rows = dims.batch * dims.heads * time, f32 = size_of(DType::f32);
  const std::int64_t shared = kv_heads_of(dims) < dims.heads ? dims.head_dim : 0;
  return rows * (2 * dims.head_dim + shared + 2) * f32 + kSlack;
}

/// Throws with cuDNN's words.
void need(fe::error_t status) {
  if (status.is_bad()) throw std::runtime_error(status.get_message());
}

/// (batch, heads, time, head_dim) within rows of `width` elements a token.
template <class Attributes>
Attributes& lay_out(Attributes& tensor, Id id, const Shape& s, std::int64_t heads, std::int64_t width) {
  return tensor.set_uid(id)
      .set_dim({s.batch, heads, s.time, s.head_dim})
      .set_stride({s.time * width, s.head_dim, width, 1});
}

/// (batch, heads, time) f32
template <class Attributes>
Attributes& lay_out_lse(Attributes& tensor, const Shape& s) {
  return tensor.set_uid(kLse)
      .set_data_type(fe::DataType_t::FLOAT)
      .set_dim({s.batch, s.heads, s.time, 1})
      .set_stride({s.heads * s.time, s.time, 1, 1});
}

template <class Attributes>
Attributes causal(const Shape& s) {
  return Attributes()
      .set_name("attention")
      .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
      .set_diagonal_band_right_bound(0)
      .set_attn_scale(1.0f / std::sqrt(static_cast<float>(s.head_dim)));
}

using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

void add_forward(fe::graph::Graph& graph, const Shape& s, const Tensor& q, const Tensor& k, const Tensor& v) {
  auto [out, lse] = graph.sdpa(q, k, v, causal<fe::graph::SDPA_attributes>(s).set_generate_stats(true));
  lay_out(out->set_output(true), kOut, s, s.heads, s.out_width());
  lay_out_lse(lse->set_output(true), s);
}

void add_backward(fe::graph::Graph& graph, const Shape& s, const Tensor& q, const Tensor& k, const Tensor& v) {
  fe::graph::Tensor_attributes out, out_grad, lse;
  const Tensor o = graph.tensor(lay_out(out, kOut, s, s.heads, s.out_width())),
               grad = graph.tensor(lay_out(out_grad, kOutGrad, s, s.heads, s.out_width())),
               stats = graph.tensor(lay_out_lse(lse, s));
  auto [dq, dk, dv] = graph.sdpa_backward(q, k, v, o, grad, stats, causal<fe::graph::SDPA_backward_attributes>(s));
  lay_out(dq->set_output(true), kQueriesGrad, s, s.heads, s.qkv_width());
  lay_out(dk->set_output(true), kKeysGrad, s, s.kv_heads, s.qkv_width());
  lay_out(dv->set_output(true), kValuesGrad, s, s.kv_heads, s.qkv_width());
}

struct Plan {
  fe::graph::Graph graph;
  std::int64_t workspace_bytes = 0;

  Plan(cudnnHandle_t handle, const Shape& s) {
    graph.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    fe::graph::Tensor_attributes queries, keys, values;
    const Tensor q = graph.tensor(lay_out(queries, kQueries, s, s.heads, s.qkv_width())),
                 k = graph.tensor(lay_out(keys, kKeys, s, s.kv_heads, s.qkv_width())),
                 v = graph.tensor(lay_out(values, kValues, s, s.kv_heads, s.qkv_width()));
    (s.is_backward ? add_backward : add_forward)(graph, s, q, k, v);
    need(graph.validate());
    need(graph.build_operation_graph(handle));
    need(graph.create_execution_plans({fe::HeurMode_t::A}));
    need(graph.check_support(handle));
    need(graph.build_plans(handle));
    need(graph.get_workspace_size(workspace_bytes));
  }
};

/// One per stream: a plan for each shape, asked for once.
class Plans {
 public:
  Plans() = default;
  Plans(const Plans&) = delete;
  Plans& operator=(const Plans&) = delete;
  ~Plans() {
    plans_.clear();
    if (handle_ != nullptr) fe::detail::destroy_handle(handle_);
  }

  /// Null where cuDNN does not have it.
  Plan* get(const ExecContext& ctx, const AttentionDims& dims, bool is_backward) {
    const Shape shape = shape_of(dims, is_backward);
    const auto found = plans_.find(shape);
    if (found != plans_.end()) return found->second.get();
    std::unique_ptr<Plan>& plan = plans_[shape];
    try {
      plan = std::make_unique<Plan>(handle(ctx), shape);
      if (plan->workspace_bytes > workspace_bytes(dims))
        throw std::runtime_error(fmt::format("it wants {} bytes of workspace", plan->workspace_bytes));
    } catch (const std::exception& error) {
      plan.reset();
      const std::string_view text = error.what();
      print_to_stderr("note: attention {} by own kernels, not by cuDNN: {}\n", describe(shape),
                      text.substr(0, text.find('\n')));
    }
    return plan.get();
  }
  cudnnHandle_t handle() const { return handle_; }

 private:
  cudnnHandle_t handle(const ExecContext& ctx) {
    if (fe::cudnn_dlhandle == nullptr) throw std::runtime_error("it has not been opened");
    if (handle_ == nullptr) {
      check(fe::detail::create_handle(&handle_), "cudnnCreate");
      check(fe::detail::set_stream(handle_, reinterpret_cast<cudaStream_t>(stream_of(ctx))), "cudnnSetStream");
    }
    return handle_;
  }
  static void check(cudnnStatus_t status, const char* call) {
    if (status != CUDNN_STATUS_SUCCESS)
      throw std::runtime_error(fmt::format("{}: {}", call, fe::detail::get_error_string(status)));
  }

  cudnnHandle_t handle_ = nullptr;
  std::map<Shape, std::unique_ptr<Plan>> plans_;
};

/// The parts of a (tokens, (heads + 2 kv_heads) head_dim) buffer.
void add_packed(Addresses& addresses, const Buffer& buffer, const AttentionDims& dims, Id queries, Id keys, Id values) {
  auto* const first = buffer.as<BFloat16>();
  addresses[queries] = first;
  addresses[keys] = first + dims.heads * dims.head_dim;
  addresses[values] = first + (dims.heads + kv_heads_of(dims)) * dims.head_dim;
}

void execute(ExecContext& ctx, const Plan& plan, const AttentionDims& dims, Addresses& addresses) {
  const auto address = reinterpret_cast<std::uintptr_t>(ctx.scratch(workspace_bytes(dims)));
  void* const workspace = reinterpret_cast<void*>((address + kAlignment - 1) / kAlignment * kAlignment);
  fe::error_t status = plan.graph.execute(ctx.state<Plans>().handle(), addresses, workspace);
  if (status.is_bad())
    throw Error(ExitCode::internal, "cuDNN: " + status.get_message(), ctx.gpu().gpu().describe(),
                "set cuda.attention = \"own\"");
}

bool is_for_cudnn(const Buffer& qkv, const AttentionDims& dims, std::initializer_list<const void*> addresses) {
  return qkv.dtype == DType::bf16 && may_take(dims) && are_aligned(qkv.data) &&
         std::all_of(addresses.begin(), addresses.end(), [](const void* address) { return are_aligned(address); });
}

std::int64_t attention_scratch(int threads, const AttentionDims& dims) {
  const std::int64_t own = cuda_kernels().scratch.attention(threads, dims);
  return may_take(dims) ? std::max(own, workspace_bytes(dims) + static_cast<std::int64_t>(kAlignment)) : own;
}

void attention_forward(ExecContext& ctx, Buffer out, Buffer lse, Buffer qkv, const AttentionDims& dims) {
  checks::attention(out, lse, qkv, dims);
  const Plan* const plan = is_for_cudnn(qkv, dims, {out.data}) ? ctx.state<Plans>().get(ctx, dims, false) : nullptr;
  if (plan == nullptr) return cuda_kernels().attention_forward(ctx, out, lse, qkv, dims);
  Addresses addresses{{kOut, out.data}, {kLse, lse.data}};
  add_packed(addresses, qkv, dims, kQueries, kKeys, kValues);
  execute(ctx, *plan, dims, addresses);
}

void attention_backward(ExecContext& ctx, Buffer dqkv, Buffer dout, Buffer out, Buffer qkv, Buffer lse,
                        const AttentionDims& dims) {
  checks::attention(out, lse, qkv, dims);
  checks::same_as("dqkv", dqkv, qkv);
  checks::same_as("dout", dout, out);
  const Plan* const plan =
      is_for_cudnn(qkv, dims, {out.data, dout.data, dqkv.data}) ? ctx.state<Plans>().get(ctx, dims, true) : nullptr;
  if (plan == nullptr) return cuda_kernels().attention_backward(ctx, dqkv, dout, out, qkv, lse, dims);
  Addresses addresses{{kOut, out.data}, {kOutGrad, dout.data}, {kLse, lse.data}};
  add_packed(addresses, qkv, dims, kQueries, kKeys, kValues);
  add_packed(addresses, dqkv, dims, kQueriesGrad, kKeysGrad, kValuesGrad);
  execute(ctx, *plan, dims, addresses);
}

}  // namespace
}  // namespace cuda

std::string open_cudnn(const std::string& folders) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const std::string rest = ", name its folder in cuda.libraries, or use cuda.attention = \"own\"";
  const std::string todo = "install it (pip: nvidia-cudnn-cu13, or -cu12)" + rest,
                    runtime_todo = "install it (pip: nvidia-cuda-runtime)" + rest;
  // The headers open the runtime by this name.
  static const std::string runtime_name = fmt::format("libcudart.so.{}", CUDART_VERSION / 1000);
  const SharedLibrary runtime({runtime_name.c_str()}, "CUDA runtime", runtime_todo.c_str(), folders, cuda_folders());
  const SharedLibrary library({"libcudnn.so.9"}, "cuDNN", todo.c_str(), folders, cuda_folders());
  std::size_t (*version_of)() = nullptr;
  library.find(version_of, "cudnnGetVersion");
  const std::size_t version = version_of();
  const std::string text = fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  if (version < cuda::kLeastVersion)
    throw Error(ExitCode::config, fmt::format("cuDNN {} is too old for attention, which needs 9.16", text),
                library.name(), todo);
  if (cudnn_frontend::cudnn_dlhandle == nullptr) cudnn_frontend::cudnn_dlhandle = library.handle();
  return text;
}

const KernelTable& cuda_kernels_with_cudnn() {
  static const KernelTable table = [] {
    KernelTable filled = cuda_kernels();
    filled.scratch.attention = cuda::attention_scratch;
    filled.attention_forward = cuda::attention_forward;
    filled.attention_backward = cuda::attention_backward;
    return filled;
  }();
  return table;
}
#else
std::string open_cudnn(const std::string&) {
  throw Error(ExitCode::config, "attention by cuDNN is not in this build", {},
              "build with -Dcuda=enabled -Dcudnn=enabled, or use cuda.attention = \"own\"");
}

const KernelTable& cuda_kernels_with_cudnn() { return cuda_kernels(); }
#endif

}  // namespace zs
