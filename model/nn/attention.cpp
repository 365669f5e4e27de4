#include "model/nn/attention.h"

namespace zs {
namespace {

AttentionOptions resolved(AttentionOptions options) {
  ZS_CHECK(options.width > 0 && options.heads > 0, "attention of {} heads over a width of {}", options.heads,
           options.width);
  if (options.kv_heads == 0) options.kv_heads = options.heads;
  ZS_CHECK(options.head_dim > 0 || options.width % options.heads == 0, "width {} is not a multiple of {} heads",
           options.width, options.heads);
  if (options.head_dim == 0) options.head_dim = options.width / options.heads;
  ZS_CHECK(options.kv_heads > 0 && options.heads % options.kv_heads == 0, "{} heads share {} of keys", options.heads,
           options.kv_heads);
  ZS_CHECK(!options.rotary || options.head_dim % 2 == 0, "heads of {} elements have no halves to turn",
           options.head_dim);
  return options;
}

}  // namespace

Attention::Attention(std::string path, const AttentionOptions& options)
    : Layer(std::move(path)),
      options_(resolved(options)),
      qkv_(make_child<Linear>("qkv", options_.width, (options_.heads + 2 * options_.kv_heads) * options_.head_dim,
                              LinearOptions{.has_bias = options_.has_qkv_bias})),
      q_norm_(options_.qk_norm_eps ? &make_child<RMSNorm>("q_norm", options_.head_dim, *options_.qk_norm_eps)
                                   : nullptr),
      k_norm_(options_.qk_norm_eps ? &make_child<RMSNorm>("k_norm", options_.head_dim, *options_.qk_norm_eps)
                                   : nullptr),
      out_(make_child<Linear>("out", options_.heads * options_.head_dim, options_.width,
                              LinearOptions{.has_bias = options_.has_bias, .init = options_.out_init})) {}

Tensor Attention::heads(const Tensor& x, const Documents& documents) {
  const ForwardScope scope = enter();
  Tensor qkv = qkv_(x);
  if (q_norm_ != nullptr)
    qkv = qk_norm(qkv, q_norm_->weight(), k_norm_->weight(), options_.heads, options_.kv_heads, q_norm_->eps());
  if (options_.rotary) {
    RotaryOptions turn = *options_.rotary;
    if (cache_ != nullptr) turn.first = cache_->seen();
    qkv = rotary(qkv, options_.heads, options_.kv_heads, turn, documents);
  }
  if (cache_ != nullptr) {
    const Tensor rows = cache_->rows(this, qkv.context(), 2 * options_.kv_heads * options_.head_dim, qkv.dtype());
    return cached_attention(
        qkv, rows,
        {.first = cache_->seen(), .heads = options_.heads, .kv_heads = options_.kv_heads, .window = options_.window});
  }
  return causal_attention(qkv, options_.heads, options_.kv_heads, options_.window, documents);
}

}  // namespace zs
