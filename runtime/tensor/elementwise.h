#pragma once

#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/host_device.h"
#include "runtime/base/usage_error.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/op_arguments.h"

/// A user's own op of single elements. Its functions run on the CPU; where nvcc compiles the file that uses this
/// header, on a GPU, too: then they are functions of a struct, or lambdas, marked __host__ __device__. nvcc wants
/// -std=c++20 --extended-lambda
/// --expt-relaxed-constexpr -DFMT_USE_CONSTEXPR=1 (which fmt 9 does not expect of it).
namespace zs {
namespace elementwise_detail {

/// body(begin, end) on each thread's share of n elements.
void on_ranges(const ExecContext& exec, std::int64_t n,
               const std::function<void(std::int64_t begin, std::int64_t end)>& body);
/// An op that cannot run on this device is refused when it is called.
void require_place(const std::string& name, const Tensor& x, bool has_gpu_code);
[[noreturn]] void refuse_device(DeviceKind device);

struct Elements {
  void* address;
  bool is_bf16;

  ZS_ON_BOTH float get(std::int64_t i) const {
    if (!is_bf16) return static_cast<const float*>(address)[i];
    const std::uint32_t word = static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(address)[i]) << 16;
    float value;
    memcpy(&value, &word, sizeof(value));
    return value;
  }
  /// Rounds to nearest even; NaN stays NaN.
  ZS_ON_BOTH void set(std::int64_t i, float value) const {
    if (!is_bf16) {
      static_cast<float*>(address)[i] = value;
      return;
    }
    std::uint32_t word;
    memcpy(&word, &value, sizeof(word));
    const bool is_nan = (word & 0x7fffffffu) > 0x7f800000u;
    const std::uint32_t half = is_nan ? (word >> 16) | 0x40u : (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
    static_cast<std::uint16_t*>(address)[i] = static_cast<std::uint16_t>(half);
  }
};
inline Elements elements_of(const Buffer& buffer) { return {buffer.data, buffer.dtype == DType::bf16}; }

template <class F>
struct Forward {
  F f;
  Elements y, x;
  ZS_ON_BOTH void operator()(std::int64_t i) const { y.set(i, f(x.get(i))); }
};
template <class Df>
struct Backward {
  Df df;
  Elements dx, dy, x, y;
  static constexpr bool kTakesValue = std::is_invocable_v<Df, float, float>;
  ZS_ON_BOTH void operator()(std::int64_t i) const {
    if constexpr (kTakesValue) {
      dx.set(i, dy.get(i) * df(x.get(i), y.get(i)));
    } else {
      dx.set(i, dy.get(i) * df(x.get(i)));
    }
  }
};

#if defined(__CUDACC__)
inline constexpr bool kHasGpuCode = true;
template <class Body>
__global__ void run_on_gpu(Body body, std::int64_t n) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) body(i);
}
#else
inline constexpr bool kHasGpuCode = false;
#endif

template <class Body>
void run(const ExecContext& exec, DeviceKind device, std::int64_t n, const Body& body) {
#if defined(__CUDACC__)
  if (device == DeviceKind::cuda) {
    if (n == 0) return;
    constexpr int kThreads = 256;
    run_on_gpu<<<static_cast<unsigned>((n + kThreads - 1) / kThreads), kThreads, 0,
                 static_cast<cudaStream_t>(exec.native_stream())>>>(body, n);
    const cudaError_t status = cudaGetLastError();
    ZS_CHECK(status == cudaSuccess, "cudaLaunchKernel: {}", cudaGetErrorString(status));
    return;
  }
#endif
  if (device != DeviceKind::cpu) [[unlikely]]
    refuse_device(device);
  on_ranges(exec, n, [&body](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) body(i);
  });
}

/// dy df(x), or dy df(x, y) where y is given.
template <class Df>
Tensor gradient(const std::string& name, Df df, const Tensor& x, const Tensor& y, const Tensor& dy) {
  Context& context = dy.context();
  Tensor dx = Tensor::empty(context, x.shape(), x.dtype());
  const Buffer out = dx.buffer(), grad = dy.buffer(), in = x.buffer(), value = y ? y.buffer() : Buffer{};
  OpInfo info{name + "_backward", {grad, in}, {out}};
  if (y) info.reads.push_back(value);
  context.launch(std::move(info), [df, out, grad, in, value](ExecContext& exec) {
    run(exec, in.device, in.elems,
        Backward<Df>{df, elements_of(out), elements_of(grad), elements_of(in), elements_of(value)});
  });
  return dx;
}

}  // namespace elementwise_detail

/// y := f(x), element by element, with the gradient dy df(x), or dy df(x, y), whichever df takes, for x in f32 and
/// bf16; f and df compute in float. df is the derivative of f.
template <class F, class Df>
Tensor elementwise(std::string name, const Tensor& x, F f, Df df) {
  namespace detail = elementwise_detail;
  require_float(name.c_str(), "x", x);
  detail::require_place(name, x, detail::kHasGpuCode);
  Context& context = x.context();
  Tensor y = Tensor::empty(context, x.shape(), x.dtype());
  const Buffer out = y.buffer(), in = x.buffer();
  context.launch({name, {in}, {out}}, [f, out, in](ExecContext& exec) {
    detail::run(exec, in.device, in.elems, detail::Forward<F>{f, detail::elements_of(out), detail::elements_of(in)});
  });
  constexpr bool kTakesValue = detail::Backward<Df>::kTakesValue;
  record_op(y, name, {x}, {}, [name, df, x = x.detach(), y = kTakesValue ? y.detach() : Tensor{}](const Tensor& dy) {
    return std::vector<Tensor>{detail::gradient(name, df, x, y, dy)};
  });
  return y;
}

}  // namespace zs
