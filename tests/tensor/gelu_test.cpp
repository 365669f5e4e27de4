// GELU beside the products before and behind it, on the CPU, where all are apart, and on an emulated GPU.
#include <catch2/catch.hpp>

#include <algorithm>
#include <set>

#include "runtime/tensor/recompute.h"
#include "tests/device/test_devices.h"
#include "tests/gpu/emulation/emulated_cublas.h"
#include "tests/gpu/emulation/kernels.h"
#include "tests/tensor/gradient_check.h"

namespace zs::test::gelu_test {
namespace {

using Floats = std::vector<float>;
using Tensors = std::vector<Tensor>;
using Parameters = std::vector<Parameter*>;

/// A GPU on which everything is done when it is enqueued.
struct Gpu {
  EmulatedDriver driver{{.is_immediate = true, .kernels = emulated_kernels()}};
  EmulatedCublas cublas{driver};
  CudaDevice device{patient(), {driver.table(), cublas.table()}};
};

struct Sizes {
  std::int64_t width, hidden;
  bool has_bias;
};

/// linear, GELU, linear.
OpUnderTest mlp_op(const Sizes& sizes, GeluKind kind) {
  const auto [width, hidden, has_bias] = sizes;
  OpUnderTest op{
      {normal({2, 3, width}, "x")}, {normal({hidden, width}, "up", 0.4), normal({width, hidden}, "down", 0.4)}, {}, {}};
  if (has_bias) op.parameters.push_back(normal({hidden}, "up bias"));
  op.run = [=](Context&, const Tensors& x, const Parameters& p) {
    return linear(linear_gelu(x[0], *p[0], has_bias ? p[2] : nullptr, kind), *p[1], nullptr);
  };
  op.reference = [=](const std::vector<Values>& a) {
    return ref::linear(ref::gelu(ref::linear(a[0], a[1], has_bias ? &a[3] : nullptr, width), kind), a[2], nullptr,
                       hidden);
  };
  return op;
}

/// What one backward leaves: the loss and the gradients of x and of two weights, and the names of the ops.
struct Result {
  std::vector<Floats> values;
  std::vector<std::string> ops;

  std::ptrdiff_t count(const char* op) const { return std::count(ops.begin(), ops.end(), op); }
};

using Body = std::function<Tensor(const Tensor& x, Parameter& up, Parameter& down)>;

constexpr std::int64_t kWidth = 8, kHidden = 16;

Result run(Device& device, const Body& body, bool recomputes = false, bool is_down_frozen = false) {
  Context context(device);
  Parameter up("up", {kHidden, kWidth}, Init{}, true), down("down", {kWidth, kHidden}, Init{}, true);
  down.set_trainable(!is_down_frozen);
  PlainOwner owner(context, DType::bf16, DType::f32);
  for (Parameter* parameter : {&up, &down})
    owner.add(*parameter, to_floats(normal(parameter->shape(), parameter->name().c_str(), 0.4).values));
  Tensor x = Tensor::from_host(context, {5, kWidth}, to_floats(normal({5, kWidth}, "x").values), DType::bf16);
  x.set_requires_grad();
  device.trace().start();
  const std::size_t before = device.trace().entries().size();
  const auto whole = [&](const Tensors& in) {
    const Tensor y = body(in[0], up, down);
    return weighted_sum(y, to_floats(rounded(normal(y.shape(), "weights").values, DType::bf16)));
  };
  const Tensor loss = recomputes ? recompute({x}, whole) : whole({x});
  backward(loss);
  device.trace().stop();
  Result result;
  if (device.kind() != DeviceKind::meta) result.values = {loss.to_host(), x.grad().to_host(), owner.grad(up).to_host()};
  if (device.kind() != DeviceKind::meta && !is_down_frozen) result.values.push_back(owner.grad(down).to_host());
  const auto& entries = device.trace().entries();
  for (std::size_t i = before; i < entries.size(); ++i) {
    if (entries[i].kind == TraceEntry::Kind::op) result.ops.push_back(entries[i].op.name);
  }
  return result;
}

Tensor mlp(const Tensor& x, Parameter& up, Parameter& down) {
  return linear(linear_gelu(x, up, nullptr, GeluKind::tanh), down, nullptr);
}

}  // namespace

TEST_CASE("I8: the gradients of linear_gelu and of the linear behind it agree with central differences") {
  const Sizes sizes = GENERATE(Sizes{8, 16, true}, Sizes{16, 8, false}, Sizes{7, 11, true}, Sizes{5, 8, true});
  const GeluKind kind = GENERATE(GeluKind::tanh, GeluKind::erf);
  for (const Precisions& precisions : {kF32, kBf16, kBf16Grads}) {
    check_gradients(mlp_op(sizes, kind), precisions);
    Gpu gpu;
    check_gradients(gpu.device, mlp_op(sizes, kind), precisions);
    const bool is_fused = precisions.value == DType::bf16 && sizes.hidden % 8 == 0 && kind == GeluKind::tanh;
    CHECK(gpu.cublas.gelu_products() == (is_fused ? 1 : 0));
    CHECK(gpu.cublas.gelu_gradient_products() == (is_fused ? 1 : 0));
  }
}

TEST_CASE("I8: what GELU gives has other uses: their gradients are added") {
  OpUnderTest op{{normal({6, kHidden}, "x", 2)},
                 {normal({kHidden, kHidden}, "weight", 0.4), normal({kHidden, kHidden}, "second", 0.4)},
                 {},
                 {}};
  op.run = [](Context&, const Tensors& x, const Parameters& p) {
    const Tensor h = gelu(x[0], GeluKind::tanh);
    return add(add(linear(h, *p[0], nullptr), h), linear(h, *p[1], nullptr));
  };
  op.reference = [](const std::vector<Values>& a) {
    const Values h = ref::gelu(a[0], GeluKind::tanh);
    return ref::add(ref::add(ref::linear(h, a[1], nullptr, kHidden), h), ref::linear(h, a[2], nullptr, kHidden));
  };
  for (const Precisions& precisions : {kF32, kBf16}) {
    check_gradients(op, precisions);
    Gpu gpu;
    check_gradients(gpu.device, op, precisions);
    CHECK(gpu.cublas.gelu_gradient_products() == (precisions.value == DType::bf16 ? 2 : 0));
  }
}

TEST_CASE("on the CPU GELU is an op of its own, forward and backward, with the same bits as written apart") {
  const auto device = Device::create(DeviceKind::cpu, {.threads = 2, .cpus = {}, .sync_timeout_s = 60});
  const Result together = run(*device, mlp),
               apart = run(*device, [](const Tensor&x, Parameter&up, Parameter&down) {
                 return linear(gelu(linear(x, up, nullptr), GeluKind::tanh), down, nullptr);
               });
  CHECK(together.values == apart.values);
  CHECK(together.ops == apart.ops);
  CHECK(together.count("gelu") == 1);
  CHECK(together.count("gelu_backward") == 1);
  CHECK(together.count("linear_dx") == 2);
}

TEST_CASE("on a GPU one op gives a linear and its GELU, and one its gradient past GELU") {
  Gpu gpu;
  const Result result = run(gpu.device, mlp);
  CHECK(result.count("linear_gelu") == 1);
  CHECK(result.count("linear") == 1);
  CHECK(result.count("linear_dx_gelu") == 1);
  CHECK(result.count("linear_dx") == 1);
  for (const char* apart : {"gelu", "gelu_backward", "add_gradients"}) CHECK(result.count(apart) == 0);
}

TEST_CASE("products with GELU declare all that they read and write") {
  Gpu gpu;
  Context context(gpu.device);
  Parameter up("up", {kHidden, kWidth}, Init{}, true), bias("bias", {kHidden}, Init{}, true),
      down("down", {kWidth, kHidden}, Init{}, true);
  PlainOwner owner(context, DType::bf16, DType::f32);
  for (Parameter* parameter : {&up, &bias, &down})
    owner.add(*parameter, Floats(static_cast<std::size_t>(parameter->numel()), 0.5f));
  const Tensor x = Tensor::from_host(context, {5, kWidth}, Floats(5 * kWidth, 0.5f), DType::bf16);
  gpu.device.trace().start();
  const Tensor h = linear_gelu(x, up, &bias, GeluKind::tanh);
  backward(weighted_sum(linear(h, down, nullptr), Floats(5 * kWidth, 1.0f)));
  const auto op = [&](const char* name) {
    for (const TraceEntry& entry : gpu.device.trace().entries()) {
      if (entry.kind == TraceEntry::Kind::op && entry.op.name == name) return entry.op;
    }
    return OpInfo{};
  };
  const auto addresses = [](const std::vector<Buffer>& buffers) {
    std::set<const void*> all;
    for (const Buffer& buffer : buffers) all.insert(buffer.data);
    return all;
  };
  OpInfo forward = op("linear_gelu"), backward = op("linear_dx_gelu"), dweight = op("linear_dweight");
  REQUIRE(forward.writes.size() == 3);
  forward.writes.pop_back();  // the scratch
  const void* const sums = forward.writes[forward.writes[0].data == h.buffer().data ? 1 : 0].data;
  CHECK(addresses(forward.writes) == std::set<const void*>{h.buffer().data, sums});
  CHECK(addresses(forward.reads) == std::set<const void*>{x.buffer().data, up.value().data, bias.value().data});
  REQUIRE(dweight.reads.size() == 2);
  CHECK(addresses(backward.reads) ==
        std::set<const void*>{dweight.reads[0].data, down.value().data, sums});  // dy, of both
  CHECK(backward.writes.size() == 2);
  CHECK(forward.scratch_bytes == context.kernels().scratch.matmul({.m = 5, .n = kHidden, .k = kWidth}));
}

TEST_CASE("behind anything but a linear GELU's gradient is an op of its own") {
  Gpu gpu;
  const Result result = run(gpu.device, [](const Tensor& x, Parameter& up, Parameter& down) {
    return linear(linear_gelu(x, up, nullptr, GeluKind::tanh).reshape({1, 5, kHidden}), down, nullptr);
  });
  CHECK(result.count("linear_gelu") == 1);
  CHECK(result.count("linear_dx_gelu") == 0);
  CHECK(result.count("gelu_backward") == 1);
}

TEST_CASE("recomputed, and behind a frozen weight, the gradients past GELU are the same bits") {
  Gpu gpu;
  const Result plain = run(gpu.device, mlp), recomputed = run(gpu.device, mlp, true),
               frozen = run(gpu.device, mlp, false, true);
  CHECK(recomputed.values == plain.values);
  CHECK(recomputed.count("linear_gelu") == 2);
  CHECK(recomputed.count("linear_dx_gelu") == 1);
  CHECK(frozen.values == std::vector<Floats>(plain.values.begin(), plain.values.end() - 1));
  CHECK(frozen.count("linear_dx_gelu") == 1);
}

TEST_CASE("GELU outside of what is recomputed gets its gradient from inside") {
  Gpu gpu;
  const Result plain = run(gpu.device, mlp),
               inside = run(gpu.device, [](const Tensor&x, Parameter&up, Parameter&down) {
                 const Tensor h = linear_gelu(x, up, nullptr, GeluKind::tanh);
                 return recompute({h}, [&down](const Tensors& in) { return linear(in[0], down, nullptr); });
               });
  CHECK(inside.values == plain.values);
  CHECK(inside.count("linear_dx_gelu") == 1);
}

TEST_CASE("what was walked back through once is not walked through again past GELU") {
  Gpu gpu;
  Context context(gpu.device);
  Tensor x = Tensor::from_host(context, {8}, Floats(8, 1.0f), DType::bf16);
  x.set_requires_grad();
  const Tensor h = gelu(x, GeluKind::tanh);
  backward(weighted_sum(h, Floats(8, 1.0f)));
  Parameter weight("weight", {8, 8}, Init{}, true);
  PlainOwner owner(context, DType::bf16, DType::f32);
  owner.add(weight, Floats(64, 0.5f));
  CHECK_THROWS_WITH(backward(weighted_sum(linear(h, weight, nullptr), Floats(8, 1.0f))),
                    Catch::Contains("already run through op gelu"));
}

TEST_CASE("linear_gelu keeps no more for its backward than linear and gelu, and backward takes no more") {
  const auto live = [](bool is_together) {
    DeviceOptions options;
    options.stands_for = DeviceKind::cuda;
    const auto device = Device::create(DeviceKind::meta, options);
    std::vector<std::int64_t> bytes;
    run(*device, [&](const Tensor& x, Parameter& up, Parameter& down) {
      const Tensor h =
          is_together ? linear_gelu(x, up, nullptr, GeluKind::tanh) : gelu(linear(x, up, nullptr), GeluKind::tanh);
      Tensor y = linear(h, down, nullptr);
      bytes.push_back(device->memory().live_bytes());
      return y;
    });
    bytes.push_back(device->memory().peak_bytes());
    return bytes;
  };
  CHECK(live(true) == live(false));
}

}  // namespace zs::test::gelu_test
