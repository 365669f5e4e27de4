#include "model/nn/lora.h"

#include <cmath>
#include <vector>

#include "runtime/tensor/ops.h"

namespace zs {

LoraAdapter::LoraAdapter(std::string path, const LoraOptions& options)
    : Layer(std::move(path)),
      options_(options),
      a_(add_parameter("lora_A.weight", {options.rank, options.in},
                       {.uniform_bound = 1 / std::sqrt(static_cast<float>(options.in))}, true)),
      b_(add_parameter("lora_B.weight", {options.rows, options.rank}, {}, true)),
      dropout_(make_child<Dropout>("dropout", options.dropout)) {}

Tensor LoraAdapter::forward(const Tensor& x) {
  const Tensor narrow = linear(dropout_(cast_input(x)), a_, nullptr);
  return linear(options_.scale == 1 ? narrow : mul(narrow, options_.scale), b_, nullptr);
}

LoraAdapters::LoraAdapters(std::string path) : Module(std::move(path)) {}

LoraAdapter& LoraAdapters::add(const std::string& name, const LoraOptions& options) {
  adapters_.push_back(&make_child<LoraAdapter>(name, options));
  return *adapters_.back();
}

void LoraAdapters::set_on(bool is_on) {
  is_on_ = is_on;
  for (LoraAdapter* adapter : adapters_) adapter->set_on(is_on);
}

Tensor add_adapters(const Tensor& y, const Tensor& x, std::span<LoraAdapter* const> adapters) {
  const Tensor wide = adapters.front()->cast_input(x);  // once for all of them
  const std::int64_t width = y.shape()[-1];
  std::vector<Tensor> parts;
  std::int64_t row = 0;
  for (LoraAdapter* adapter : adapters) {
    const LoraOptions& options = adapter->options();
    const Tensor part = cast((*adapter)(wide), y.dtype());
    const std::int64_t before = options.first_row - row;
    row = options.first_row + options.rows;
    const std::int64_t after = adapter == adapters.back() ? width - row : 0;
    parts.push_back(before + after > 0 ? pad(part, -1, before, after) : part);
  }
  return add(y, parts.size() == 1 ? parts.front() : concat(parts, -1));
}

}  // namespace zs
