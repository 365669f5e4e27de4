#include "model/nn/cross_attention.h"

#include "runtime/base/usage_error.h"
#include "runtime/tensor/dot_product_attention.h"
#include "runtime/tensor/layout.h"

namespace zs {
namespace {

CrossAttentionOptions with_defaults(const std::string& path, CrossAttentionOptions options) {
  if (options.kv_heads == 0) options.kv_heads = options.heads;
  if (options.context_width == 0) options.context_width = options.width;
  if (options.width < 1 || options.heads < 1 || options.width % options.heads != 0 || options.kv_heads < 1 ||
      options.heads % options.kv_heads != 0 || options.context_width < 1)
    throw UsageError(fmt::format("cross attention \"{}\" of {} heads over a width of {}, with {} heads of keys over {}",
                                 path, options.heads, options.width, options.kv_heads, options.context_width),
                     "heads divide the width, and kv_heads the heads");
  return options;
}

}  // namespace

CrossAttention::CrossAttention(std::string path, const CrossAttentionOptions& options)
    : Layer(std::move(path)),
      options_(with_defaults(this->path(), options)),
      head_dim_(options_.width / options_.heads),
      q_(make_child<Linear>("q", options_.width, options_.width, LinearOptions{.has_bias = options_.has_bias})),
      kv_(make_child<Linear>("kv", options_.context_width, 2 * options_.kv_heads * head_dim_,
                             LinearOptions{.has_bias = options_.has_bias})),
      out_(make_child<Linear>("out", options_.width, options_.width,
                              LinearOptions{.has_bias = options_.has_bias, .init = options_.out_init})) {
  kv_.weight().set_matrix_rows({options_.kv_heads * head_dim_, options_.kv_heads * head_dim_});
}

Tensor CrossAttention::forward(const Tensor& x, const Tensor& context, const Tensor& mask) {
  for (const auto& [tokens, width] : {std::pair(x, options_.width), std::pair(context, options_.context_width)})
    if (!tokens || tokens.shape().rank() != 3 || tokens.shape()[2] != width)
      throw UsageError(
          fmt::format("cross attention \"{}\" of {}", path(), tokens ? tokens.describe() : "an empty tensor"),
          fmt::format("give (batch, tokens, {}), then (batch, tokens, {})", options_.width, options_.context_width));
  const std::int64_t batch = x.shape()[0], tokens = x.shape()[1], seen = context.shape()[1];
  const Tensor q = transpose(q_(x).reshape({batch, tokens, options_.heads, head_dim_}), 1, 2);
  const Tensor kv = permute(kv_(context).reshape({batch, seen, 2, options_.kv_heads, head_dim_}), {2, 0, 3, 1, 4});
  const auto part = [&](int i) { return kv.rows(i, 1).reshape({batch, options_.kv_heads, seen, head_dim_}); };
  const Tensor y = dot_product_attention(q, part(0), part(1), {.mask = mask});
  return output(out_(transpose(y, 1, 2).reshape({batch, tokens, options_.width})));
}

}  // namespace zs
