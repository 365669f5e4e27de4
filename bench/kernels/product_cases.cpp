#include "bench/kernels/kernel_case.h"

/// Every product of a step of GPT-2 124M.
namespace zs::bench {
namespace {

struct Product {
  std::string name;
  MatmulDims dims;
  DType result;
  bool has_bias = false;
};

void add(std::vector<KernelCase>& cases, DType dtype, const Product& p) {
  const MatmulDims& d = p.dims;
  const double operands = static_cast<double>((d.m * d.k + d.k * d.n) * size_of(dtype));
  const double result = static_cast<double>(d.m * d.n * size_of(p.result)) * (d.beta == 0 ? 1 : 2);
  const std::string to = p.result == dtype ? "" : fmt::format(" to {}", zs::name_of(p.result));
  cases.push_back({.kernel = "matmul",
                   .shape = fmt::format("{} {} x {} x {}{}{}", p.name, d.m, d.n, d.k,
                                        d.transpose_a ? fmt::format(" beta {:g}", d.beta) : "", to),
                   .dtype = dtype,
                   .bound = Bound::products,
                   .bytes = operands + result + (p.has_bias ? static_cast<double>(d.n * size_of(dtype)) : 0),
                   .flops = 2.0 * static_cast<double>(d.m * d.n) * static_cast<double>(d.k),
                   .make = [dtype, p](Arrays& arrays, int) {
                     const MatmulDims& dims = p.dims;
                     const Buffer c = arrays.random(dims.m * dims.n, p.result),
                                  a = arrays.random(dims.m * dims.k, dtype), b = arrays.random(dims.k * dims.n, dtype),
                                  bias = p.has_bias ? arrays.random(dims.n, dtype) : Buffer{};
                     return
                         [=, dims = p.dims](ExecContext& exec) { kernels_of(exec).matmul(exec, c, a, b, bias, dims); };
                   }});
}

/// One of the MLP's products that compute GELU, or its gradient: with what that is taken of written, or read, beside
/// the result.
void add_gelu_product(std::vector<KernelCase>& cases, DType dtype, const MatmulDims& d, bool is_backward) {
  const std::int64_t bias_elems = is_backward ? 0 : d.n, elems = d.m * d.k + d.k * d.n + 2 * d.m * d.n + bias_elems;
  cases.push_back({.kernel = is_backward ? "matmul_gelu_backward" : "matmul_gelu",
                   .shape = fmt::format("{} {} x {} x {}", is_backward ? "dx down" : "forward up", d.m, d.n, d.k),
                   .dtype = dtype,
                   .bound = Bound::products,
                   .bytes = static_cast<double>(elems * size_of(dtype)),
                   .flops = 2.0 * static_cast<double>(d.m * d.n) * static_cast<double>(d.k),
                   .make = [=](Arrays& arrays, int) -> Work {
                     const Buffer a = arrays.random(d.m * d.k, dtype), b = arrays.random(d.k * d.n, dtype),
                                  x = arrays.random(d.m * d.n, dtype), y = arrays.random(d.m * d.n, dtype);
                     if (is_backward)
                       return [=](ExecContext& exec) {
                         kernels_of(exec).matmul_gelu_backward(exec, x, {y, a, b, {}}, d);
                       };
                     const Buffer bias = arrays.random(d.n, dtype);
                     return [=](ExecContext& exec) { kernels_of(exec).matmul_gelu(exec, y, {x, a, b, bias}, d); };
                   }});
}

struct Layer {
  const char* name;
  std::int64_t rows, outputs, inputs;
  bool is_head = false;  ///< logits are f32, and there is no bias
};

/// Forward, data gradient, weight gradient. Gradients of weights are f32.
void add_layer(std::vector<KernelCase>& cases, DType dtype, const Layer& l) {
  add(cases, dtype,
      {.name = fmt::format("forward {}", l.name),
       .dims = {.m = l.rows, .n = l.outputs, .k = l.inputs, .transpose_b = true},
       .result = l.is_head ? DType::f32 : dtype,
       .has_bias = !l.is_head});
  add(cases, dtype,
      {.name = fmt::format("dx {}", l.name), .dims = {.m = l.rows, .n = l.inputs, .k = l.outputs}, .result = dtype});
  for (const float beta : {0.0f, 1.0f})
    add(cases, dtype,
        {.name = fmt::format("dweight {}", l.name),
         .dims = {.m = l.outputs, .n = l.inputs, .k = l.rows, .transpose_a = true, .beta = beta},
         .result = DType::f32});
}

}  // namespace

void add_product_cases(std::vector<KernelCase>& cases, const CaseSizes& sizes, DType dtype) {
  const std::int64_t tokens = sizes.tokens(), width = sizes.width, odd = sizes.odd_width;
  for (const Layer& layer :
       {Layer{"qkv", tokens, 3 * width, width}, Layer{"out", tokens, width, width},
        Layer{"up", tokens, 4 * width, width}, Layer{"down", tokens, width, 4 * width},
        Layer{"head", sizes.chunk_rows(), sizes.padded_vocab, width, true}, Layer{"odd", sizes.odd_rows, odd, odd - 2}})
    add_layer(cases, dtype, layer);
  if (!sizes.is_gpu) return;
  add_gelu_product(cases, dtype, {.m = tokens, .n = 4 * width, .k = width, .transpose_b = true}, false);
  add_gelu_product(cases, dtype, {.m = tokens, .n = 4 * width, .k = width}, true);
}

}  // namespace zs::bench
