#include "bench/kernel_case.h"

/// Sums, norms and the optimizer: what runs on the flat shards, and the scalars between.
namespace zs::bench {
namespace {

constexpr DType kF32 = DType::f32;

const KernelTable& kernels() { return cpu_kernels(); }

void add_sum(std::vector<KernelCase>& cases, std::int64_t n, Bound bound) {
  cases.push_back({.kernel = "sum",
                   .shape = fmt::format("{}", n),
                   .bound = bound,
                   .bytes = static_cast<double>(n * size_of(kF32)),
                   .make = [=](Arrays& arrays, int) {
                     const Buffer out = arrays.zeros(1, kF32), in = arrays.random(n, kF32);
                     return [=](ExecContext& exec) { kernels().sum(exec, out, in, 1.0f); };
                   }});
}

void add_norms(std::vector<KernelCase>& cases, DType dtype, std::int64_t n) {
  const auto bytes = static_cast<double>(n * size_of(dtype));
  const auto add = [&](const char* kernel, auto make) {
    cases.push_back({.kernel = kernel, .shape = fmt::format("{}", n), .dtype = dtype, .bytes = bytes, .make = make});
  };
  add("squared_norm", [=](Arrays& arrays, int) {
    const Buffer out = arrays.zeros(1, DType::f64), in = arrays.random(n, dtype);
    return [=](ExecContext& exec) { kernels().squared_norm(exec, out, in); };
  });
  add("max_exponent", [=](Arrays& arrays, int) {
    const Buffer out = arrays.zeros(1, DType::i32), in = arrays.random(n, dtype);
    return [=](ExecContext& exec) { kernels().max_exponent(exec, out, in); };
  });
  add("fixed_point_squares", [=](Arrays& arrays, int) {
    constexpr int kShift = 30;
    const Buffer out = arrays.zeros(1, DType::i64), in = arrays.random(n, dtype), exponent = arrays.zeros(1, DType::i32);
    return [=](ExecContext& exec) { kernels().fixed_point_squares(exec, out, in, exponent, kShift); };
  });
}

void add_clip(std::vector<KernelCase>& cases) {
  cases.push_back({.kernel = "clip_coefficient",
                   .shape = "1",
                   .bound = Bound::latency,
                   .bytes = sizeof(double) + sizeof(StepScalars),
                   .make = [=](Arrays& arrays, int) {
                     const Buffer scalars = arrays.zeros(sizeof(StepScalars) / sizeof(float), kF32), norm = arrays.zeros(1, DType::f64);
                     return [=](ExecContext& exec) { kernels().clip_coefficient(exec, scalars, norm, {}, 0, 1.0f); };
                   }});
}

/// Reads and writes master, m and v, reads grad; `has_copy`: writes bf16 parameters too.
void add_adamw(std::vector<KernelCase>& cases, std::int64_t n, bool has_copy) {
  cases.push_back({.kernel = "adamw",
                   .shape = fmt::format("{}{}", n, has_copy ? " with bf16 copy" : ""),
                   .bytes = static_cast<double>(n * (7 * size_of(kF32) + (has_copy ? size_of(DType::bf16) : 0))),
                   .make = [=](Arrays& arrays, int) {
                     constexpr AdamWOptions kOptions{.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f};
                     const Buffer master = arrays.random(n, kF32), m = arrays.random(n, kF32), v = arrays.random(n, kF32, 0.1f, 1),
                                  copy = has_copy ? arrays.random(n, DType::bf16) : Buffer{}, grad = arrays.random(n, kF32),
                                  scalars = arrays.floats({1e-4f, 0.5f, 0.5f, 1.0f, 1.0f, 0.0f});
                     return [=](ExecContext& exec) { kernels().adamw(exec, master, m, v, copy, grad, scalars, kOptions); };
                   }});
}

}  // namespace

void add_optimizer_cases(std::vector<KernelCase>& cases) {
  add_sum(cases, kTokens, Bound::latency);
  add_sum(cases, kUnitElems, Bound::memory);
  for (const DType dtype : {kF32, DType::bf16}) add_norms(cases, dtype, kUnitElems);
  add_norms(cases, kF32, kOddElems);
  add_clip(cases);
  for (const std::int64_t n : {kUnitElems, kOddElems})
    for (const bool has_copy : {false, true}) add_adamw(cases, n, has_copy);
}

std::vector<KernelCase> kernel_cases() {
  std::vector<KernelCase> cases;
  for (const DType dtype : {kF32, DType::bf16}) {
    add_product_cases(cases, dtype);
    add_elementwise_cases(cases, dtype);
    add_model_cases(cases, dtype);
  }
  add_optimizer_cases(cases);
  return cases;
}

}  // namespace zs::bench
