// Sequences that are packed with documents: each document's results are those that it has alone.
#include "runtime/tensor/documents.h"

#include <catch2/catch.hpp>

#include "tests/device/test_devices.h"
#include "tests/gpu/emulation/emulated_cublas.h"
#include "tests/gpu/emulation/kernels.h"
#include "tests/tensor/gradient_check.h"
#include "tests/tensor/plain_owner.h"

namespace zs::test::documents_test {
namespace {

using Lengths = std::vector<std::int64_t>;
using Op = std::function<Tensor(const Tensor& x, const Documents& documents)>;

/// Two sequences, in ways that meet tiles of 64 tokens, runs of equals and single tokens.
std::vector<Lengths> cuts() {
  return {{80, 80}, {1, 79, 64, 16}, {3, 70, 7, 7, 7, 65, 1}, {40, 40, 40, 20, 20}, {16, 1, 1, 62, 80}};
}

constexpr std::int64_t kBatch = 2, kTime = 80;

struct Both {
  std::vector<float> y, dx;
  bool operator==(const Both&) const = default;
};

Both run(Context& context, const Op& op, const Tensor& values, const Documents& documents) {
  Tensor x = Tensor::from_host(context, values.shape(), values.to_host(), values.dtype());
  x.set_requires_grad();
  const Tensor y = op(x, documents);
  const std::vector<float> result = y.to_host();
  std::vector<float> weights;  // a gradient that each element has of its own, the same in any cut
  for (const float value : result) weights.push_back(value > 0 ? 1.0f : -2.0f);
  backward(cast(sum(mul(y, Tensor::from_host(context, y.shape(), weights, y.dtype()))), DType::f32));
  return {result, x.grad().to_host()};
}

void check_alone(Device& device, const Op& op, std::int64_t width, DType dtype, const Lengths& lengths) {
  Context context(device);
  const Shape shape{kBatch, kTime, width};
  const Tensor x = Tensor::from_host(context, shape, to_floats(normal(shape, "x").values), dtype);
  const Both packed = run(context, op, x, Documents(lengths));
  Both alone;
  std::int64_t first = 0;
  for (const std::int64_t length : lengths) {
    const Tensor part = x.reshape({kBatch * kTime, width}).rows(first, length).reshape({1, length, width});
    const Both own = run(context, op, part, {});
    alone.y.insert(alone.y.end(), own.y.begin(), own.y.end());
    alone.dx.insert(alone.dx.end(), own.dx.begin(), own.dx.end());
    first += length;
  }
  CHECK((packed == alone));
}

void check_alone(const Op& op, std::int64_t width, DType dtype, const Lengths& lengths) {
  check_alone(*Device::create(DeviceKind::cpu, {.threads = 2, .cpus = {}, .sync_timeout_s = 60}), op, width, dtype,
              lengths);
}

Op attention_op(std::int64_t kv_heads, std::int64_t window) {
  return
      [=](const Tensor& x, const Documents& documents) { return causal_attention(x, 4, kv_heads, window, documents); };
}

Op rotary_op(std::int64_t first) {
  return [=](const Tensor& x, const Documents& documents) {
    return rotary(x, 2, 2, {.base = 100, .first = first}, documents);
  };
}

}  // namespace

TEST_CASE("a document's attention and its gradient are those that it has alone, bit for bit") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const std::int64_t kv_heads = GENERATE(4, 2), window = GENERATE(0, 5);
  const Lengths lengths = GENERATE(from_range(cuts()));
  CAPTURE(kv_heads, window, lengths);
  check_alone(attention_op(kv_heads, window), (4 + 2 * kv_heads) * 8, dtype, lengths);
}

TEST_CASE("documents are apart on a GPU, too") {
  EmulatedDriver driver{{.is_immediate = true, .kernels = emulated_kernels()}};
  EmulatedCublas cublas{driver};
  CudaDevice device{patient(), {driver.table(), cublas.table()}};
  const Lengths lengths = {3, 70, 7, 7, 7, 65, 1};
  check_alone(device, attention_op(2, 5), 8 * 8, GENERATE(DType::f32, DType::bf16), lengths);
  check_alone(device, rotary_op(0), 6 * 8, DType::f32, lengths);
}

TEST_CASE("rotary positions begin anew with each document") {
  const std::int64_t first = GENERATE(0, 3);
  const Lengths lengths = GENERATE(from_range(cuts()));
  check_alone(rotary_op(first), 6 * 8, DType::f32, lengths);
}

TEST_CASE("learned positions begin anew with each document, and their gradients add up exactly") {
  const Lengths lengths = GENERATE(from_range(cuts()));
  const auto device = Device::create(DeviceKind::cpu, {});
  Context context(*device);
  constexpr std::int64_t kRows = 9, kWidth = 5;
  const auto ids = random_ids(kBatch * kTime, kRows, 4);
  const auto integers = [](std::int64_t count, std::uint32_t seed) {
    const auto drawn = random_ids(count, 17, seed);
    return std::vector<float>(drawn.begin(), drawn.end());
  };
  const std::vector<float> dy = integers(kBatch * kTime * kWidth, 6);
  struct Result {
    std::vector<float> y, dtable, dpositions;
    bool operator==(const Result&) const = default;
  };
  const auto run = [&](const Lengths& parts, bool is_packed) {
    Parameter table("table", {kRows, kWidth}, {}, true), positions("positions", {kTime, kWidth}, {}, true);
    PlainOwner owner(context);
    owner.add(table, integers(kRows * kWidth, 7));
    owner.add(positions, integers(kTime * kWidth, 8));
    Result result;
    const auto part = [&](std::int64_t first, const Shape& shape, const Documents& documents) {
      const auto tokens = shape.numel();
      const Tensor own = Tensor::from_host(
          context, shape, std::vector<std::int32_t>(ids.begin() + first, ids.begin() + first + tokens));
      const Tensor y = embedding(own, table, &positions, 0, documents);
      const std::vector<float> values = y.to_host(),
                               grad(dy.begin() + first * kWidth, dy.begin() + (first + tokens) * kWidth);
      result.y.insert(result.y.end(), values.begin(), values.end());
      backward(sum(mul(y, Tensor::from_host(context, y.shape(), grad))));
    };
    std::int64_t first = 0;
    if (is_packed) part(0, {kBatch, kTime}, Documents(parts));
    for (const std::int64_t length : is_packed ? Lengths{} : parts) {
      part(first, {1, length}, {});
      first += length;
    }
    result.dtable = owner.grad(table).to_host();
    result.dpositions = owner.grad(positions).to_host();
    return result;
  };
  CHECK((run(lengths, true) == run(lengths, false)));
}

TEST_CASE("documents that do not fit the sequences are refused") {
  const auto device = Device::create(DeviceKind::cpu, {});
  Context context(*device);
  const Tensor qkv = Tensor::zeros(context, {2, 8, 6}, DType::f32);
  const auto refuses = [&](const Lengths& lengths, const char* place) {
    CHECK_THROWS_WITH(
        causal_attention(qkv, 1, 1, 0, Documents(lengths)),
        Catch::Contains("op attention: the documents do not fit 2 sequences of 8 tokens") && Catch::Contains(place));
  };
  refuses({8, 7}, "at token 15");
  refuses({5, 4, 7}, "at token 5");
  refuses({8, 8, 1}, "at token 17");
  CHECK_THROWS_WITH(Documents({3, 0}), Catch::Contains("a document of 0 tokens"));
}

}  // namespace zs::test::documents_test
