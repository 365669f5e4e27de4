#include "bench/kernel_case.h"

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
  cases.push_back(
      {.kernel = "matmul",
       .shape = fmt::format("{} {} x {} x {}{}{}", p.name, d.m, d.n, d.k, d.transpose_a ? fmt::format(" beta {:g}", d.beta) : "", to),
       .dtype = dtype,
       .bound = Bound::products,
       .bytes = operands + result + (p.has_bias ? static_cast<double>(d.n * size_of(dtype)) : 0),
       .flops = 2.0 * static_cast<double>(d.m * d.n) * static_cast<double>(d.k),
       .make = [dtype, p](Arrays& arrays, int) {
         const MatmulDims& dims = p.dims;
         const Buffer c = arrays.random(dims.m * dims.n, p.result), a = arrays.random(dims.m * dims.k, dtype),
                      b = arrays.random(dims.k * dims.n, dtype), bias = p.has_bias ? arrays.random(dims.n, dtype) : Buffer{};
         return [=, dims = p.dims](ExecContext& exec) { kernels_of(exec).matmul(exec, c, a, b, bias, dims); };
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
  add(cases, dtype, {.name = fmt::format("dx {}", l.name), .dims = {.m = l.rows, .n = l.inputs, .k = l.outputs}, .result = dtype});
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
       {Layer{"qkv", tokens, 3 * width, width}, Layer{"out", tokens, width, width}, Layer{"up", tokens, 4 * width, width},
        Layer{"down", tokens, width, 4 * width}, Layer{"head", sizes.chunk_rows(), sizes.padded_vocab, width, true},
        Layer{"odd", sizes.odd_rows, odd, odd - 2}})
    add_layer(cases, dtype, layer);
}

}  // namespace zs::bench
