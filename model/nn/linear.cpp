#include "model/nn/linear.h"

#include "model/nn/tensor_partition.h"
#include "runtime/base/usage_error.h"
#include "runtime/shard/collectives/collectives.h"
#include "runtime/tensor/arithmetic.h"

namespace zs {

Linear::Linear(std::string path, std::int64_t in, std::int64_t out, const LinearOptions& options)
    : Layer(std::move(path)),
      weight_(add_parameter("weight", {out, in}, options.init, true)),
      bias_(options.has_bias ? &add_parameter("bias", {out}, {}, false) : nullptr) {}

Tensor Linear::forward(const Tensor& x) {
  Communicator* const ranks = find_ranks();
  if (ranks == nullptr) {
    const Tensor in = input(x), y = linear(in, weight_, bias_);
    return is_adapted() ? add_adapters({y, weight_, bias_}, in, adapters_) : y;
  }
  if (weight_.part().dim == 0) return linear(rows_input(*ranks, x), weight_, bias_);
  const Tensor part = linear(input(x), weight_, nullptr);
  const Tensor sum = sum_of_parts(*ranks, cast(part, DType::f32));
  return cast(bias_ != nullptr ? sum + cast(as_tensor(sum.context(), *bias_), DType::f32) : sum, part.dtype());
}

Tensor Linear::forward_gelu(const Tensor& x, GeluKind kind) {
  const ForwardScope scope = enter();
  Communicator* const ranks = find_ranks();
  if (is_adapted() || (ranks != nullptr && weight_.part().dim != 0)) return gelu(forward(x), kind);
  return linear_gelu(ranks != nullptr ? rows_input(*ranks, x) : input(x), weight_, bias_, kind);
}

Tensor Linear::rows_input(Communicator& ranks, const Tensor& x) const {
  const Tensor in = input(x);
  return cast(input_of_parts(ranks, cast(in, DType::f32)), in.dtype());
}

Communicator* Linear::find_ranks() const {
  const ParameterPart& part = weight_.part();
  const bool has_whole_bias = bias_ == nullptr || bias_->part().is_whole();
  if (part.is_whole() && has_whole_bias) return nullptr;
  Communicator* const ranks = find_part_ranks(*this, part.is_whole() ? *bias_ : weight_);
  const auto refuse = [&](const char* why, const char* what_to_do) {
    throw UsageError(fmt::format("\"{}\" is cut over {} ranks, {}", path(), ranks->size(), why), what_to_do);
  };
  if (bias_ != nullptr && has_whole_bias == (part.dim == 0 && !part.is_whole()))
    refuse("and its bias does not go with that", "cut the bias on dim 0 where the weight is, and nowhere else");
  if (is_adapted()) refuse("and has adapters", "leave one of the two out");
  return ranks;
}

void Linear::set_row_blocks(const std::vector<std::int64_t>& blocks) {
  weight_.set_blocks(blocks);
  if (bias_ != nullptr) bias_->set_blocks(blocks);
}

void Linear::add_adapter(LoraAdapter& adapter) { adapters_.push_back(&adapter); }

}  // namespace zs
