#include "bench/kernels/kernel_case.h"

/// Sums, norms and the optimizer: what runs on the flat shards, and the scalars between.
namespace zs::bench {
namespace {

void add_sum(std::vector<KernelCase>& cases, std::int64_t n, Bound bound) {
  cases.push_back({.kernel = "sum",
                   .shape = fmt::format("{}", n),
                   .bound = bound,
                   .bytes = static_cast<double>((n + 1) * size_of(kF32)),
                   .make = [=](Arrays& arrays, int) {
                     const Buffer out = arrays.zeros(1, kF32), in = arrays.random(n, kF32);
                     return [=](ExecContext& exec) { kernels_of(exec).sum(exec, out, in, 1.0f); };
                   }});
}

void add_norms(std::vector<KernelCase>& cases, DType dtype, std::int64_t n) {
  const auto bytes = static_cast<double>(n * size_of(dtype));
  const auto add = [&](const char* kernel, auto make) {
    cases.push_back({.kernel = kernel, .shape = fmt::format("{}", n), .dtype = dtype, .bytes = bytes, .make = make});
  };
  add("squared_norm", [=](Arrays& arrays, int) {
    const Buffer out = arrays.zeros(1, DType::f64), in = arrays.random(n, dtype);
    return [=](ExecContext& exec) { kernels_of(exec).squared_norm(exec, out, in); };
  });
  add("max_exponent", [=](Arrays& arrays, int) {
    const Buffer out = arrays.zeros(1, DType::i32), in = arrays.random(n, dtype);
    return [=](ExecContext& exec) { kernels_of(exec).max_exponent(exec, out, in); };
  });
  add("max_magnitude", [=](Arrays& arrays, int) {
    const Buffer out = arrays.zeros(1, DType::i32), in = arrays.random(n, dtype);
    return [=](ExecContext& exec) { kernels_of(exec).max_magnitude(exec, out, in); };
  });
  add("power_sum", [=](Arrays& arrays, int) {
    const Buffer out = arrays.zeros(1, DType::f64), in = arrays.random(n, dtype), one = arrays.floats({1.0f}),
                 largest{one.data, 1, DType::i32, one.device};
    return [=](ExecContext& exec) { kernels_of(exec).power_sum(exec, out, in, largest, 1.0f); };
  });
  add("fixed_point_squares", [=](Arrays& arrays, int) {
    constexpr int kShift = 30;
    const Buffer out = arrays.zeros(1, DType::i64), in = arrays.random(n, dtype),
                 exponent = arrays.zeros(1, DType::i32);
    return [=](ExecContext& exec) { kernels_of(exec).fixed_point_squares(exec, out, in, exponent, kShift); };
  });
}

void add_clip(std::vector<KernelCase>& cases) {
  cases.push_back({.kernel = "clip_coefficient",
                   .shape = "1",
                   .bound = Bound::latency,
                   .bytes = sizeof(double) + sizeof(StepScalars),
                   .make = [=](Arrays& arrays, int) {
                     const Buffer scalars = arrays.zeros(sizeof(StepScalars) / sizeof(float), kF32),
                                  norm = arrays.zeros(1, DType::f64);
                     return [=](ExecContext& exec) {
                       kernels_of(exec).clip_coefficient(exec, scalars, norm, {}, 0, 1.0f);
                     };
                   }});
  cases.push_back(
      {.kernel = "correct_scalars",
       .shape = "1",
       .bound = Bound::latency,
       .bytes = sizeof(UpdateCount) + 2 * sizeof(StepScalars),
       .make = [=](Arrays& arrays, int) {
         const Buffer scalars = arrays.zeros(sizeof(StepScalars) / sizeof(float), kF32),
                      before = arrays.zeros(sizeof(UpdateCount) / sizeof(double), DType::f64);
         return [=](ExecContext& exec) {
           kernels_of(exec).correct_scalars(exec, scalars, scalars, before, {StepCorrection::Kind::adamw, 0.9f, 0.95f});
         };
       }});
  cases.push_back({.kernel = "count_updates",
                   .shape = "1",
                   .bound = Bound::latency,
                   .bytes = 2 * sizeof(UpdateCount) + sizeof(StepScalars),
                   .make = [=](Arrays& arrays, int) {
                     const Buffer scalars = arrays.zeros(sizeof(StepScalars) / sizeof(float), kF32),
                                  counts = arrays.zeros(sizeof(UpdateCount) / sizeof(double), DType::f64);
                     return [=](ExecContext& exec) { kernels_of(exec).count_updates(exec, counts, scalars); };
                   }});
  cases.push_back({.kernel = "norm_of_powers",
                   .shape = "1",
                   .bound = Bound::latency,
                   .bytes = 2 * sizeof(double),
                   .make = [=](Arrays& arrays, int) {
                     const Buffer largest = arrays.zeros(1, DType::i32), norm = arrays.zeros(1, DType::f64);
                     return [=](ExecContext& exec) { kernels_of(exec).norm_of_powers(exec, norm, largest, 3.0f); };
                   }});
}

void add_clip_gradient(std::vector<KernelCase>& cases, std::int64_t n) {
  cases.push_back(
      {.kernel = "clip_gradient",
       .shape = fmt::format("{}", n),
       .bytes = static_cast<double>(2 * n * size_of(kF32)),
       .make = [=](Arrays& arrays, int) {
         const Buffer grad = arrays.random(n, kF32), scalars = arrays.floats({1e-4f, 1.0f, 1.0f, 1.0f, 1.0f, 0.0f});
         return [=](ExecContext& exec) { kernels_of(exec).clip_gradient(exec, grad, scalars); };
       }});
}

/// A whole parameter, or a part of one that is cut along its last dim: runs of `run` elements.
void add_stochastic_cast(std::vector<KernelCase>& cases, std::int64_t n, std::int64_t run) {
  cases.push_back({.kernel = "stochastic_cast",
                   .shape = fmt::format("{}{}", n, run < n ? fmt::format(" in runs of {}", run) : ""),
                   .bytes = static_cast<double>(n * (size_of(kF32) + size_of(DType::bf16))),
                   .make = [=](Arrays& arrays, int) {
                     const Buffer out = arrays.random(n, DType::bf16), in = arrays.random(n, kF32);
                     return [=](ExecContext& exec) {
                       kernels_of(exec).stochastic_cast(exec, out, in,
                                                        {.key = 1, .first = 0, .run = run, .stride = 4 * run});
                     };
                   }});
}

/// Reads and writes master, m and v, reads grad; `has_copy`: writes bf16 parameters too.
void add_adamw(std::vector<KernelCase>& cases, std::int64_t n, bool has_copy) {
  cases.push_back({.kernel = "update",
                   .shape = fmt::format("adamw {}{}", n, has_copy ? " with bf16 copy" : ""),
                   .bytes = static_cast<double>(n * (7 * size_of(kF32) + (has_copy ? size_of(DType::bf16) : 0))),
                   .make = [=](Arrays& arrays, int) {
                     constexpr AdamWOptions kOptions{.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f};
                     const Buffer master = arrays.random(n, kF32), m = arrays.random(n, kF32),
                                  v = arrays.random(n, kF32, 0.1f, 1),
                                  copy = has_copy ? arrays.random(n, DType::bf16) : Buffer{},
                                  grad = arrays.random(n, kF32),
                                  scalars = arrays.floats({1e-4f, 0.5f, 0.5f, 1.0f, 1.0f, 0.0f});
                     const UpdateRange range{master, grad, copy, m, v, scalars, 0.1f};
                     return [=](ExecContext& exec) { kernels_of(exec).update(exec, range, kOptions); };
                   }});
}

/// Reads and writes master and momentum, reads grad.
void add_sgd(std::vector<KernelCase>& cases, std::int64_t n, bool has_copy) {
  cases.push_back({.kernel = "update",
                   .shape = fmt::format("sgd {}{}", n, has_copy ? " with bf16 copy" : ""),
                   .bytes = static_cast<double>(n * (5 * size_of(kF32) + (has_copy ? size_of(DType::bf16) : 0))),
                   .make = [=](Arrays& arrays, int) {
                     constexpr SgdOptions kOptions{.momentum = 0.9f, .nesterov = false};
                     const Buffer master = arrays.random(n, kF32), momentum = arrays.random(n, kF32),
                                  copy = has_copy ? arrays.random(n, DType::bf16) : Buffer{},
                                  grad = arrays.random(n, kF32),
                                  scalars = arrays.floats({1e-4f, 1.0f, 1.0f, 1.0f, 1.0f, 0.0f});
                     const UpdateRange range{master, grad, copy, momentum, {}, scalars, 0.1f};
                     return [=](ExecContext& exec) { kernels_of(exec).update(exec, range, kOptions); };
                   }});
}

/// Reads and writes master and momentum, reads grad.
void add_lion(std::vector<KernelCase>& cases, std::int64_t n, bool has_copy) {
  cases.push_back({.kernel = "update",
                   .shape = fmt::format("lion {}{}", n, has_copy ? " with bf16 copy" : ""),
                   .bytes = static_cast<double>(n * (5 * size_of(kF32) + (has_copy ? size_of(DType::bf16) : 0))),
                   .make = [=](Arrays& arrays, int) {
                     constexpr LionOptions kOptions{.beta1 = 0.9f, .beta2 = 0.99f};
                     const Buffer master = arrays.random(n, kF32), momentum = arrays.random(n, kF32),
                                  copy = has_copy ? arrays.random(n, DType::bf16) : Buffer{},
                                  grad = arrays.random(n, kF32),
                                  scalars = arrays.floats({1e-4f, 1.0f, 1.0f, 1.0f, 1.0f, 0.0f});
                     const UpdateRange range{master, grad, copy, momentum, {}, scalars, 0.1f};
                     return [=](ExecContext& exec) { kernels_of(exec).update(exec, range, kOptions); };
                   }});
}

/// Both parts: reads grad, moments of 8 bits and their scales twice, writes new scales, moments and the master once.
void add_blockwise_adamw(std::vector<KernelCase>& cases, std::int64_t n, bool is_scales) {
  const ElementRuns part{0, n, n};
  const std::int64_t blocks = blocks_of(part, n), bytes = is_scales ? size_of(kF32) + 2 : 3 * size_of(kF32) + 4;
  cases.push_back({.kernel = is_scales ? "blockwise_adamw_scales" : "blockwise_adamw",
                   .shape = fmt::format("{}", n),
                   .bytes = static_cast<double>(n * bytes + blocks * 4 * size_of(kF32)),
                   .make = [=](Arrays& arrays, int) {
                     constexpr AdamWOptions kOptions{.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f};
                     const Buffer grad = arrays.random(n, kF32);
                     const auto scales = [&] { return arrays.random(blocks, kF32, 0.1f, 1); };
                     const BlockwiseAdamW of{.master = is_scales ? grad : arrays.random(n, kF32),
                                             .copy = {},
                                             .grad = grad,
                                             .scalars = arrays.floats({1e-4f, 0.5f, 0.5f, 1.0f, 1.0f, 0.0f}),
                                             .m = arrays.zeros(n, DType::u8),
                                             .v = arrays.zeros(n, DType::u8),
                                             .m_scales = scales(),
                                             .v_scales = scales(),
                                             .new_m_scales = scales(),
                                             .new_v_scales = scales(),
                                             .part = part,
                                             .weight_decay = 0.1f};
                     return [=](ExecContext& exec) {
                       is_scales ? kernels_of(exec).blockwise_adamw_scales(exec, of, kOptions)
                                 : kernels_of(exec).blockwise_adamw(exec, of, kOptions);
                     };
                   }});
}

}  // namespace

void add_optimizer_cases(std::vector<KernelCase>& cases, const CaseSizes& sizes) {
  add_sum(cases, sizes.tokens(), Bound::latency);
  add_sum(cases, sizes.unit_elems, Bound::memory);
  for (const DType dtype : {kF32, DType::bf16}) add_norms(cases, dtype, sizes.unit_elems);
  add_norms(cases, kF32, sizes.odd_elems);
  add_clip(cases);
  add_clip_gradient(cases, sizes.unit_elems);
  for (const std::int64_t n : {sizes.unit_elems, sizes.odd_elems})
    for (const bool has_copy : {false, true})
      add_adamw(cases, n, has_copy), add_sgd(cases, n, has_copy), add_lion(cases, n, has_copy);
  for (const bool is_scales : {true, false}) add_blockwise_adamw(cases, sizes.unit_elems, is_scales);
  for (const std::int64_t run : {sizes.unit_elems, std::int64_t{192}})
    add_stochastic_cast(cases, sizes.unit_elems, run);
}

CaseSizes gpu_case_sizes() {
  return {
      .batch = 16,
      .time = 1024,
      .unit_elems = 30'740'800,
      .odd_elems = 30'000'001,
      .odd_rows = 16001,
      .attention = {{16, 1024, 12, 64}, {4, 4096, 12, 64}, {4, 4096, 12, 128}, {4, 4096, 12, 128, 4}, {3, 331, 5, 40}},
      .is_gpu = true};
}

std::vector<KernelCase> kernel_cases(const CaseSizes& sizes) {
  std::vector<KernelCase> cases;
  for (const DType dtype : {kF32, DType::bf16}) {
    add_product_cases(cases, sizes, dtype);
    add_elementwise_cases(cases, sizes, dtype);
    add_general_cases(cases, sizes, dtype);
    add_model_cases(cases, sizes, dtype);
  }
  add_optimizer_cases(cases, sizes);
  return cases;
}

}  // namespace zs::bench
