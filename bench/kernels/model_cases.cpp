#include "bench/kernels/kernel_case.h"

/// Kernels of a model's layers, but for products.
namespace zs::bench {
namespace {

std::string matrix(std::int64_t rows, std::int64_t columns) { return fmt::format("{} x {}", rows, columns); }

/// Gradients of parameters are f32, and added to where beta is 1.
double gradient_bytes(std::int64_t elems, float beta) { return bytes_of(elems, kF32) * (beta == 0 ? 1 : 2); }

void add_bias(std::vector<KernelCase>& cases, DType dtype, std::int64_t rows, std::int64_t width, float beta) {
  cases.push_back({.kernel = "bias_backward",
                   .shape = fmt::format("{} beta {:g}", matrix(rows, width), beta),
                   .dtype = dtype,
                   .bytes = bytes_of(rows * width, dtype) + gradient_bytes(width, beta),
                   .make = [=](Arrays& arrays, int) {
                     const Buffer dbias = arrays.random(width, kF32), dy = arrays.random(rows * width, dtype);
                     return [=](ExecContext& exec) { kernels_of(exec).bias_backward(exec, dbias, dy, beta); };
                   }});
}

void add_layer_norm(std::vector<KernelCase>& cases, DType dtype, std::int64_t rows, std::int64_t width) {
  const double plane = bytes_of(rows * width, dtype), statistics = bytes_of(2 * rows, kF32),
               gains = bytes_of(2 * width, dtype);
  cases.push_back({.kernel = "layer_norm_forward",
                   .shape = matrix(rows, width),
                   .dtype = dtype,
                   .bytes = 2 * plane + statistics + gains,
                   .make = [=](Arrays& arrays, int) {
                     const Buffer y = arrays.random(rows * width, dtype), mean = arrays.zeros(rows, kF32),
                                  rstd = arrays.zeros(rows, kF32), x = arrays.random(rows * width, dtype),
                                  gamma = arrays.random(width, dtype), beta = arrays.random(width, dtype);
                     return [=](ExecContext& exec) {
                       kernels_of(exec).layer_norm_forward(exec, y, mean, rstd, x, gamma, beta, 1e-5f);
                     };
                   }});
  cases.push_back({.kernel = "layer_norm_backward",
                   .shape = matrix(rows, width),
                   .dtype = dtype,
                   .bytes = 3 * plane + statistics + gains / 2 + gradient_bytes(2 * width, 0),
                   .make = [=](Arrays& arrays, int) {
                     const Buffer dx = arrays.random(rows * width, dtype), dgamma = arrays.random(width, kF32),
                                  dbeta = arrays.random(width, kF32), dy = arrays.random(rows * width, dtype),
                                  x = arrays.random(rows * width, dtype), mean = arrays.random(rows, kF32),
                                  rstd = arrays.random(rows, kF32, 1, 2), gamma = arrays.random(width, dtype);
                     return [=](ExecContext& exec) {
                       kernels_of(exec).layer_norm_backward(exec, dx, dgamma, dbeta, dy, x, mean, rstd, gamma, 0);
                     };
                   }});
}

/// What a residual adds to a norm: its sum with x, written as well, and in backward the gradient that goes past the
/// norm.
void add_norm_of_sum(std::vector<KernelCase>& cases, DType dtype, std::int64_t rows, std::int64_t width) {
  const double plane = bytes_of(rows * width, dtype), statistics = bytes_of(2 * rows, kF32),
               gains = bytes_of(2 * width, dtype);
  cases.push_back({.kernel = "layer_norm_forward",
                   .shape = matrix(rows, width) + " with a residual",
                   .dtype = dtype,
                   .bytes = 4 * plane + statistics + gains,
                   .make = [=](Arrays& arrays, int) {
                     const Buffer y = arrays.random(rows * width, dtype), sum = arrays.random(rows * width, dtype),
                                  mean = arrays.zeros(rows, kF32), rstd = arrays.zeros(rows, kF32),
                                  x = arrays.random(rows * width, dtype), residual = arrays.random(rows * width, dtype),
                                  gamma = arrays.random(width, dtype), beta = arrays.random(width, dtype);
                     const NormInput in{x, residual, sum};
                     return [=](ExecContext& exec) {
                       kernels_of(exec).layer_norm_forward(exec, y, mean, rstd, in, gamma, beta, 1e-5f);
                     };
                   }});
  cases.push_back({.kernel = "layer_norm_backward",
                   .shape = matrix(rows, width) + " with a residual",
                   .dtype = dtype,
                   .bytes = 4 * plane + statistics + gains / 2 + gradient_bytes(2 * width, 0),
                   .make = [=](Arrays& arrays, int) {
                     const Buffer dx = arrays.random(rows * width, dtype), dgamma = arrays.random(width, kF32),
                                  dbeta = arrays.random(width, kF32), dy = arrays.random(rows * width, dtype),
                                  x = arrays.random(rows * width, dtype), mean = arrays.random(rows, kF32),
                                  rstd = arrays.random(rows, kF32, 1, 2), gamma = arrays.random(width, dtype);
                     return [=](ExecContext& exec) {  // in place, as most often in a step
                       kernels_of(exec).layer_norm_backward(exec, dx, dgamma, dbeta, {dy, dx}, x, mean, rstd, gamma, 0);
                     };
                   }});
}

void add_rms_norm(std::vector<KernelCase>& cases, DType dtype, std::int64_t rows, std::int64_t width) {
  const double plane = bytes_of(rows * width, dtype), statistics = bytes_of(rows, kF32), gains = bytes_of(width, dtype);
  cases.push_back({.kernel = "rms_norm_forward",
                   .shape = matrix(rows, width),
                   .dtype = dtype,
                   .bytes = 2 * plane + statistics + gains,
                   .make = [=](Arrays& arrays, int) {
                     const Buffer y = arrays.random(rows * width, dtype), rstd = arrays.zeros(rows, kF32),
                                  x = arrays.random(rows * width, dtype), gamma = arrays.random(width, dtype);
                     return
                         [=](ExecContext& exec) { kernels_of(exec).rms_norm_forward(exec, y, rstd, x, gamma, 1e-5f); };
                   }});
  cases.push_back({.kernel = "rms_norm_backward",
                   .shape = matrix(rows, width),
                   .dtype = dtype,
                   .bytes = 3 * plane + statistics + gains + gradient_bytes(width, 0),
                   .make = [=](Arrays& arrays, int) {
                     const Buffer dx = arrays.random(rows * width, dtype), dgamma = arrays.random(width, kF32),
                                  dy = arrays.random(rows * width, dtype), x = arrays.random(rows * width, dtype),
                                  rstd = arrays.random(rows, kF32, 1, 2), gamma = arrays.random(width, dtype);
                     return [=](ExecContext& exec) {
                       kernels_of(exec).rms_norm_backward(exec, dx, dgamma, dy, x, rstd, gamma, 0);
                     };
                   }});
}

/// Gated activation: `kernel` begins its name.
struct GatedKernels {
  std::string kernel;
  decltype(KernelTable::swiglu_forward) KernelTable::*forward;
  decltype(KernelTable::swiglu_backward) KernelTable::*backward;
};

/// `width`: of what comes out; what goes in is twice as wide.
void add_gated(std::vector<KernelCase>& cases, const GatedKernels& gated, DType dtype, std::int64_t rows,
               std::int64_t width) {
  const double plane = bytes_of(rows * width, dtype);
  cases.push_back({.kernel = gated.kernel + "_forward",
                   .shape = matrix(rows, width),
                   .dtype = dtype,
                   .bytes = 3 * plane,
                   .make = [=, forward = gated.forward](Arrays& arrays, int) {
                     const Buffer y = arrays.random(rows * width, dtype),
                                  x = arrays.random(2 * rows * width, dtype, -3, 3);
                     return [=](ExecContext& exec) { (kernels_of(exec).*forward)(exec, y, x, width); };
                   }});
  cases.push_back({.kernel = gated.kernel + "_backward",
                   .shape = matrix(rows, width),
                   .dtype = dtype,
                   .bytes = 5 * plane,
                   .make = [=, backward = gated.backward](Arrays& arrays, int) {
                     const Buffer dx = arrays.random(2 * rows * width, dtype), dy = arrays.random(rows * width, dtype),
                                  x = arrays.random(2 * rows * width, dtype, -3, 3);
                     return [=](ExecContext& exec) { (kernels_of(exec).*backward)(exec, dx, dy, x, width); };
                   }});
}

void add_embedding(std::vector<KernelCase>& cases, const CaseSizes& sizes, DType dtype) {
  const std::int64_t tokens = sizes.tokens(), time = sizes.time, width = sizes.width, vocab = sizes.padded_vocab;
  const double rows = bytes_of(tokens * width, dtype), ids_bytes = bytes_of(tokens, DType::i32);
  const std::string shape = fmt::format("{} of {}", matrix(tokens, width), vocab);
  cases.push_back({.kernel = "embedding_forward",
                   .shape = shape,
                   .dtype = dtype,
                   .bytes = 2 * rows + ids_bytes + bytes_of(time * width, dtype),
                   .make = [=](Arrays& arrays, int set) {
                     const Buffer out = arrays.random(tokens * width, dtype), ids = arrays.ids(tokens, vocab, set),
                                  table = arrays.shared_random("table", vocab * width, dtype),
                                  positions = arrays.random(time * width, dtype);
                     return [=](ExecContext& exec) {
                       kernels_of(exec).embedding_forward(exec, out, ids, table, positions, time);
                     };
                   }});
  for (const float beta : {0.0f, 1.0f}) {
    const double table_bytes = beta == 0 ? bytes_of(vocab * width, kF32) : 2 * bytes_of(tokens * width, kF32);
    cases.push_back({.kernel = "embedding_backward",
                     .shape = fmt::format("{} beta {:g}", shape, beta),
                     .dtype = dtype,
                     .bytes = rows + ids_bytes + table_bytes,
                     .make = [=](Arrays& arrays, int set) {
                       const Buffer dtable = arrays.shared_random("dtable", vocab * width, kF32),
                                    ids = arrays.ids(tokens, vocab, set), dy = arrays.random(tokens * width, dtype);
                       return [=](ExecContext& exec) {
                         kernels_of(exec).embedding_backward(exec, dtable, ids, dy, width, beta, -1);
                       };
                     }});
  }
}

void add_positions(std::vector<KernelCase>& cases, const CaseSizes& sizes, DType dtype) {
  const std::int64_t tokens = sizes.tokens(), time = sizes.time, width = sizes.width;
  cases.push_back(
      {.kernel = "position_backward",
       .shape = fmt::format("{} to {} beta 0", matrix(tokens, width), time),
       .dtype = dtype,
       .bytes = bytes_of(tokens * width, dtype) + gradient_bytes(time * width, 0),
       .make = [=](Arrays& arrays, int) {
         const Buffer dpositions = arrays.random(time * width, kF32), dy = arrays.random(tokens * width, dtype);
         return [=](ExecContext& exec) { kernels_of(exec).position_backward(exec, dpositions, dy, time, width, 0); };
       }});
}

std::string shape_of(const AttentionDims& dims) {
  const std::string shared = dims.kv_heads > 0 ? fmt::format(" on {}", dims.kv_heads) : "";
  return fmt::format("{} x {}, {}{} heads of {}", dims.batch, dims.time, dims.heads, shared, dims.head_dim);
}

/// Only the lower triangle counts. Forward has 2 products with it, backward 5, one of which is the scores again.
void add_attention(std::vector<KernelCase>& cases, DType dtype, const AttentionDims& dims) {
  const std::int64_t tokens = dims.batch * dims.time, width = dims.heads * dims.head_dim;
  const std::int64_t qkv_elems = tokens * qkv_width_of(dims);
  const double plane = bytes_of(tokens * width, dtype), sums = bytes_of(tokens * dims.heads, kF32),
               qkv_bytes = bytes_of(qkv_elems, dtype);
  const double product = static_cast<double>(tokens * dims.time) * static_cast<double>(width);
  const std::string shape = shape_of(dims);
  cases.push_back({.kernel = "attention_forward",
                   .shape = shape,
                   .dtype = dtype,
                   .bound = Bound::products,
                   .bytes = plane + qkv_bytes + sums,
                   .flops = 2 * product,
                   .make = [=](Arrays& arrays, int) {
                     const Buffer out = arrays.random(tokens * width, dtype),
                                  lse = arrays.zeros(tokens * dims.heads, kF32), qkv = arrays.random(qkv_elems, dtype);
                     return [=, &kernels = arrays.kernels()](ExecContext& exec) {
                       kernels.attention_forward(exec, out, lse, qkv, dims);
                     };
                   }});
  cases.push_back({.kernel = "attention_backward",
                   .shape = shape,
                   .dtype = dtype,
                   .bound = Bound::products,
                   .bytes = 2 * (plane + qkv_bytes) + sums,
                   .flops = 5 * product,
                   .make = [=](Arrays& arrays, int) {
                     const Buffer dqkv = arrays.random(qkv_elems, dtype), dout = arrays.random(tokens * width, dtype),
                                  out = arrays.random(tokens * width, dtype), qkv = arrays.random(qkv_elems, dtype),
                                  lse = arrays.random(tokens * dims.heads, kF32, 5, 6);
                     return [=, &kernels = arrays.kernels()](ExecContext& exec) {
                       kernels.attention_backward(exec, dqkv, dout, out, qkv, lse, dims);
                     };
                   }});
}

void add_rotary(std::vector<KernelCase>& cases, DType dtype, const AttentionDims& dims) {
  const std::int64_t elems = dims.batch * dims.time * qkv_width_of(dims);
  cases.push_back({.kernel = "rotary",
                   .shape = shape_of(dims),
                   .dtype = dtype,
                   .bytes = 2 * bytes_of(elems, dtype),
                   .make = [=](Arrays& arrays, int) {
                     const Buffer out = arrays.random(elems, dtype), in = arrays.random(elems, dtype);
                     return [=](ExecContext& exec) { kernels_of(exec).rotary(exec, out, in, dims, {}); };
                   }});
}

/// Logits of `rows` tokens. f32 works in place, as a training step does.
void add_cross_entropy(std::vector<KernelCase>& cases, DType dtype, std::int64_t rows, std::int64_t stride,
                       std::int64_t classes) {
  const double row_bytes = bytes_of(3 * rows, kF32);
  const std::string shape = matrix(rows, stride);
  if (dtype == kF32) {
    cases.push_back({.kernel = "cross_entropy_forward",
                     .shape = shape,
                     .dtype = dtype,
                     .bytes = bytes_of(rows * classes, kF32) + row_bytes,
                     .make = [=](Arrays& arrays, int set) {
                       const Buffer losses = arrays.zeros(rows, kF32), lse = arrays.zeros(rows, kF32),
                                    logits = arrays.random(rows * stride, kF32),
                                    targets = arrays.ids(rows, classes, set);
                       return [=](ExecContext& exec) {
                         kernels_of(exec).cross_entropy_forward(exec, losses, lse, logits, targets, classes);
                       };
                     }});
  }
  cases.push_back({.kernel = "cross_entropy_backward",
                   .shape = shape,
                   .dtype = dtype,
                   .bytes = bytes_of(rows * classes, kF32) + bytes_of(rows * stride, dtype) + row_bytes,
                   .make = [=](Arrays& arrays, int set) {
                     const Buffer logits = arrays.random(rows * stride, kF32), lse = arrays.random(rows, kF32, 10, 11),
                                  targets = arrays.ids(rows, classes, set), dloss = arrays.floats({1.0f});
                     const Buffer dlogits = dtype == kF32 ? logits : arrays.random(rows * stride, dtype);
                     return [=](ExecContext& exec) {
                       kernels_of(exec).cross_entropy_backward(exec, dlogits, logits, lse, targets, dloss, classes,
                                                               1e-3f);
                     };
                   }});
}

/// Losses and gradients of logits of `rows` tokens, which a GPU's training step takes.
void add_cross_entropy_in_place(std::vector<KernelCase>& cases, DType dtype, std::int64_t rows, std::int64_t stride,
                                std::int64_t classes) {
  cases.push_back({.kernel = "cross_entropy_in_place",
                   .shape = matrix(rows, stride),
                   .dtype = dtype,
                   .bytes = bytes_of(rows * classes + rows * stride, dtype) + bytes_of(2 * rows, kF32),
                   .make = [=](Arrays& arrays, int set) {
                     const Buffer losses = arrays.zeros(rows, kF32), logits = arrays.random(rows * stride, dtype),
                                  targets = arrays.ids(rows, classes, set), dloss = arrays.floats({1.0f});
                     return [=](ExecContext& exec) {
                       kernels_of(exec).cross_entropy_in_place(exec, losses, logits, targets, dloss, classes, 1e-3f);
                     };
                   }});
}

}  // namespace

void add_model_cases(std::vector<KernelCase>& cases, const CaseSizes& sizes, DType dtype) {
  const std::int64_t tokens = sizes.tokens();
  for (const std::int64_t width : {sizes.width, 3 * sizes.width, 4 * sizes.width})
    add_bias(cases, dtype, tokens, width, 0);
  add_bias(cases, dtype, sizes.odd_rows, sizes.odd_width, 1);
  add_layer_norm(cases, dtype, tokens, sizes.width);
  add_layer_norm(cases, dtype, sizes.odd_rows, sizes.odd_width);
  add_norm_of_sum(cases, dtype, tokens, sizes.width);
  add_norm_of_sum(cases, dtype, sizes.odd_rows, sizes.odd_width);
  add_rms_norm(cases, dtype, tokens, sizes.width);
  add_rms_norm(cases, dtype, sizes.odd_rows, sizes.odd_width);
  for (const GatedKernels& gated : {GatedKernels{"swiglu", &KernelTable::swiglu_forward, &KernelTable::swiglu_backward},
                                    {"geglu", &KernelTable::geglu_forward, &KernelTable::geglu_backward}}) {
    add_gated(cases, gated, dtype, tokens, sizes.swiglu_width);
    add_gated(cases, gated, dtype, sizes.odd_rows, sizes.odd_width);
  }
  for (const AttentionDims& dims : sizes.attention) add_rotary(cases, dtype, dims);
  add_embedding(cases, sizes, dtype);
  add_positions(cases, sizes, dtype);
  for (const AttentionDims& dims : sizes.attention) add_attention(cases, dtype, dims);
  add_cross_entropy(cases, dtype, sizes.chunk_rows(), sizes.padded_vocab, sizes.vocab);
  add_cross_entropy(cases, dtype, sizes.odd_rows, sizes.odd_width, sizes.odd_width);
  if (!sizes.is_gpu) return;
  add_cross_entropy_in_place(cases, dtype, sizes.chunk_rows(), sizes.padded_vocab, sizes.vocab);
}

}  // namespace zs::bench
