#include "model/nn/lora.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "runtime/tensor/arithmetic.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/experts.h"
#include "runtime/tensor/layout.h"
#include "runtime/tensor/ops.h"
#include "runtime/tensor/statistics.h"

namespace zs {
namespace {

/// Elements of a weight whose norms are computed at once: what is between stays in the cache.
constexpr std::int64_t kNormElems = std::int64_t{1} << 20;
/// Least norm that a row is divided by, so that one of zeros stays one.
constexpr float kLeastNorm = 1e-30f, kLargest = std::numeric_limits<float>::max();

}  // namespace

LoraAdapter::LoraAdapter(std::string path, const LoraOptions& options)
    : Layer(std::move(path)),
      options_(options),
      a_(add_parameter("lora_A.weight", {options.rank * std::max<std::int64_t>(1, options.experts), options.in},
                       {.uniform_bound = 1 / std::sqrt(static_cast<float>(options.in))}, true)),
      b_(add_parameter("lora_B.weight", {options.rows * std::max<std::int64_t>(1, options.experts), options.rank}, {},
                       true)),
      magnitude_(options.has_magnitude ? &add_parameter("lora_magnitude_vector", {options.rows}, {.constant = 1}, false)
                                       : nullptr),
      dropout_(make_child<Dropout>("dropout", options.dropout)) {
  if (options.experts == 0) return;
  a_.set_matrix_rows(std::vector(static_cast<std::size_t>(options.experts), options.rank));
  b_.set_matrix_rows(std::vector(static_cast<std::size_t>(options.experts), options.rows));
}

Tensor LoraAdapter::forward(const Tensor& x, const AdaptedProduct& product) {
  const Tensor in = dropout_(x), narrow = linear(in, a_, nullptr);
  const Tensor added = linear(options_.scale == 1 ? narrow : mul(narrow, options_.scale), b_, nullptr);
  if (magnitude_ == nullptr) return added;
  Context& context = x.context();
  const Tensor base = base_of(in, product);
  return (base + added) * row_factors(context, product.weight) - base;
}

Tensor LoraAdapter::row_factors(Context& context, const Parameter& weight) {
  const auto computed = [&] { return as_tensor(context, *magnitude_) / row_norms(context, weight, true); };
  if (cache_ == nullptr) return computed();
  Tensor& kept = cache_->kept(this);
  if (!kept) kept = computed();
  return kept;
}

Tensor LoraAdapter::forward(const Tensor& x, const Routing& routing) {
  const Tensor narrow = grouped_linear(x, a_, nullptr, routing);
  return grouped_linear(options_.scale == 1 ? narrow : mul(narrow, options_.scale), b_, nullptr, routing);
}

Tensor LoraAdapter::base_of(const Tensor& x, const AdaptedProduct& product) const {
  const auto [first, rows] = std::pair(options_.first_row, options_.rows);
  if (dropout_.is_active())
    return cast(linear_rows(cast(x, product.y.dtype()), product.weight, first, rows), DType::f32);
  const bool is_all = rows == product.y.shape()[-1];
  const Tensor base = cast(is_all ? product.y : slice(product.y, -1, first, rows), DType::f32);
  return product.bias != nullptr ? base - rows_of(x.context(), *product.bias, first, rows) : base;
}

Tensor LoraAdapter::row_norms(Context& context, const Parameter& weight, bool with_change) const {
  const NoGradGuard no_grad(context);
  const std::int64_t most = std::max<std::int64_t>(1, kNormElems / options_.in);
  std::vector<Tensor> norms;
  for (std::int64_t row = 0; row < options_.rows; row += most) {
    const std::int64_t count = std::min(most, options_.rows - row);
    Tensor rows = rows_of(context, weight, options_.first_row + row, count);
    if (with_change) rows = rows + matmul(rows_of(context, b_, row, count) * options_.scale, as_tensor(context, a_));
    norms.push_back(norm(rows, {1}));
  }
  const Tensor all = norms.size() == 1 ? norms.front() : concat(norms, 0);
  return with_change ? clamp(all, kLeastNorm, kLargest) : all;
}

EmbeddingAdapter::EmbeddingAdapter(std::string path, const EmbeddingLoraOptions& options)
    : Layer(std::move(path)),
      options_(options),
      a_(add_parameter("lora_embedding_A", {padded_vocab(options.vocab), options.rank}, {}, true)),
      b_(add_parameter("lora_embedding_B", {options.width, options.rank}, {.normal_std = 1}, true)) {
  a_.set_matrix_rows({options.vocab});
}

Tensor EmbeddingAdapter::forward(const Tensor& ids) {
  const Tensor narrow = embedding(ids, a_, nullptr, 0, {}, options_.padding);
  return linear(options_.scale == 1 ? narrow : mul(narrow, options_.scale), b_, nullptr);
}

LoraAdapters::LoraAdapters(std::string path) : Module(std::move(path)) {}

LoraAdapter& LoraAdapters::add(const std::string& name, const LoraOptions& options) {
  adapters_.push_back(&make_child<LoraAdapter>(name, options));
  return *adapters_.back();
}

EmbeddingAdapter& LoraAdapters::add(const std::string& name, const EmbeddingLoraOptions& options) {
  return make_child<EmbeddingAdapter>(name, options);
}

void LoraAdapters::use_cache(KvCache* cache) {
  for (LoraAdapter* adapter : adapters_) adapter->use_cache(cache);
}

void LoraAdapters::set_on(bool is_on) {
  is_on_ = is_on;
  for (LoraAdapter* adapter : adapters_) adapter->set_on(is_on);
}

Tensor add_adapters(const AdaptedProduct& product, const Tensor& x, std::span<LoraAdapter* const> adapters) {
  const Tensor& y = product.y;
  const Tensor wide = adapters.front()->cast_input(x);  // once for all of them
  const std::int64_t width = y.shape()[-1];
  std::vector<Tensor> parts;
  std::int64_t row = 0;
  for (LoraAdapter* adapter : adapters) {
    const LoraOptions& options = adapter->options();
    const Tensor part = cast((*adapter)(wide, product), y.dtype());
    const std::int64_t before = options.first_row - row;
    row = options.first_row + options.rows;
    const std::int64_t after = adapter == adapters.back() ? width - row : 0;
    parts.push_back(before + after > 0 ? pad(part, -1, before, after) : part);
  }
  return add(y, parts.size() == 1 ? parts.front() : concat(parts, -1));
}

}  // namespace zs
