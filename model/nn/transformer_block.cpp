#include "model/nn/transformer_block.h"

namespace zs {
namespace {

std::unique_ptr<FeedForward> make_feed_forward(std::string path, const BlockOptions& options) {
  if (options.mixture) return std::make_unique<Mixture>(std::move(path), *options.mixture);
  return std::make_unique<Mlp>(std::move(path), options.mlp);
}

}  // namespace

TransformerBlock::TransformerBlock(std::string path, const BlockOptions& options)
    : Layer(std::move(path)),
      norm1_(own_child(make_norm(options.norm, path_of("norm1"), options.attention.width, options.norm_eps))),
      attention_(make_child<Attention>("attention", options.attention)),
      norm2_(own_child(make_norm(options.norm, path_of("norm2"), options.attention.width, options.norm_eps))),
      mlp_(own_child(make_feed_forward(path_of("mlp"), options))),
      norms_(options.norms),
      output_norm1_(find_output_norm("output_norm1", options, norm1_)),
      output_norm2_(find_output_norm("output_norm2", options, norm2_)),
      attention_dropout_(make_child<Dropout>("attention_dropout", options.residual_dropout)),
      mlp_dropout_(make_child<Dropout>("mlp_dropout", options.residual_dropout)) {}

Norm* TransformerBlock::find_output_norm(const char* name, const BlockOptions& options, Norm& own) {
  if (options.norms == NormPlace::input) return nullptr;
  if (options.norms == NormPlace::output) return &own;
  return &own_child(make_norm(options.norm, path_of(name), options.attention.width, options.norm_eps));
}

std::int64_t TransformerBlock::idle_parameter_count() const {
  const auto* const mixture = dynamic_cast<const Mixture*>(&mlp_);
  return mixture != nullptr ? mixture->idle_parameter_count() : 0;
}

LoraAdapters& TransformerBlock::make_adapters() { return *(adapters_ = &make_child<LoraAdapters>("lora")); }

Tensor TransformerBlock::run(Recompute part, const Tensor& x, const TensorsFunction& body, const TensorFunction& last) {
  if (recompute_ != part) return last(body({x}));
  InputKeeper* const keeper = part == Recompute::block ? keeper_ : nullptr;
  if (adapters_ == nullptr) return recompute({x}, body, last, keeper);
  // A backward keeps what adapters of the last product make: it has to be made again, too.
  return recompute(
      {x}, [body, last](const std::vector<Tensor>& in) { return std::vector{last(body(in))}; },
      [](const std::vector<Tensor>& all) { return all.front(); }, keeper);
}

Tensor TransformerBlock::attention(const Tensor& x, const Documents& documents) {
  const Tensor y = run(
      Recompute::attention, x,
      [this, documents](const auto& in) {
        return std::vector{attention_.heads(norms_ == NormPlace::output ? in[0] : norm1_(in[0]), documents)};
      },
      [this](const auto& in) { return attention_.out_proj(in[0]); });
  return output_norm1_ != nullptr ? (*output_norm1_)(y) : y;
}

Tensor TransformerBlock::forward(const Tensor& x, const Documents& documents) {
  const ForwardScope scope = enter();
  const ForwardScope adapters =
      adapters_ != nullptr && adapters_->is_on() ? adapters_->unsharded() : ForwardScope(nullptr, 0);
  const auto up_to_hidden = [this, documents](const std::vector<Tensor>& in) {
    const auto [sum, normalized] = norm2_.forward_sum(in[0], attention_dropout_(attention(in[0], documents)));
    return std::vector{sum, mlp_.body(normalized)};
  };
  const auto up_to_norm = [this, up_to_hidden, documents](const std::vector<Tensor>& in) {
    if (norms_ == NormPlace::both) {
      const std::vector<Tensor> made = up_to_hidden(in);
      return std::vector{made[0], (*output_norm2_)(mlp_.last(made[1]))};
    }
    const Tensor sum = add(in[0], attention_dropout_(attention(in[0], documents)));
    return std::vector{sum, norm2_(mlp_.last(mlp_.body(sum)))};
  };
  if (norms_ != NormPlace::input)
    return run(Recompute::block, output(x), up_to_norm,
               [this](const auto& in) { return add(in[0], mlp_dropout_(in[1])); });
  // Values that stay f32 between the parts of a block are f32 from its beginning.
  return run(Recompute::block, output(x), up_to_hidden,
             [this](const auto& in) { return add(in[0], mlp_dropout_(mlp_.last(in[1]))); });
}

}  // namespace zs
