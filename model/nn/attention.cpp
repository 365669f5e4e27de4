#include "model/nn/attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/base/usage_error.h"
#include "runtime/shard/collectives/collectives.h"
#include "runtime/tensor/arithmetic.h"
#include "runtime/tensor/layout.h"
#include "runtime/tensor/reduction.h"

namespace zs {
namespace {

AttentionOptions resolved(AttentionOptions options) {
  const auto require = [](bool is_so, const std::string& otherwise, const char* remedy) {
    if (!is_so) throw UsageError("Attention: " + otherwise, remedy);
  };
  require(options.width > 0 && options.heads > 0 && options.head_dim >= 0 && options.window >= 0,
          fmt::format("{} heads of {} over a width of {}, in a window of {}", options.heads, options.head_dim,
                      options.width, options.window),
          "give a width and heads; a head_dim or window of 0 is the default");
  if (options.kv_heads == 0) options.kv_heads = options.heads;
  require(options.head_dim > 0 || options.width % options.heads == 0,
          fmt::format("width {} is not a multiple of {} heads", options.width, options.heads),
          "change one of them, or give head_dim");
  if (options.head_dim == 0) options.head_dim = options.width / options.heads;
  require(options.kv_heads > 0 && options.heads % options.kv_heads == 0,
          fmt::format("{} heads share {} of keys", options.heads, options.kv_heads), "give kv_heads that divide heads");
  require(!options.rotary || options.head_dim % 2 == 0,
          fmt::format("heads of {} elements have no halves to turn", options.head_dim), "give an even head_dim");
  return options;
}

/// The tokens that each token of (B, T) sees: the last one before them (-1: none is), and the one after them.
struct Seen {
  std::vector<std::int32_t> before, behind;
};

Seen seen_in_window(std::int64_t batch, std::int64_t tokens, const AttentionOptions& options) {
  Seen seen;
  for (std::int64_t i = 0; i < batch * tokens; ++i) {
    const std::int64_t number = i % tokens, window = options.window > 0 ? options.window : tokens;
    seen.before.push_back(static_cast<std::int32_t>(std::max<std::int64_t>(-1, number - window)));
    seen.behind.push_back(
        static_cast<std::int32_t>(options.is_causal ? number + 1 : std::min(tokens, number + window)));
  }
  return seen;
}

/// f32 (B or 1, 1, T, T), for `shape` (B, T): 1 where the token of the row sees that of the column.
Tensor seen_by(Context& context, const Shape& shape, const AttentionOptions& options, const Documents& documents) {
  const std::int64_t tokens = shape[1], batch = documents.are_whole_sequences() ? 1 : shape[0];
  Seen seen = seen_in_window(batch, tokens, options);
  if (!documents.are_whole_sequences()) {
    for (const Documents::Run& run : documents.runs("attention", shape[0], tokens)) {
      for (std::int64_t i = run.first; i < run.first + run.tokens(); ++i) {
        const std::int64_t begin = (i - (i - run.first) % run.length) % tokens;
        auto &before = seen.before[static_cast<std::size_t>(i)], &behind = seen.behind[static_cast<std::size_t>(i)];
        before = std::max(before, static_cast<std::int32_t>(begin) - 1);
        behind = std::min(behind, static_cast<std::int32_t>(begin + run.length));
      }
    }
  }
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(tokens));
  std::iota(numbers.begin(), numbers.end(), 0);
  const Tensor column = Tensor::from_host(context, {1, 1, 1, tokens}, std::move(numbers));
  return mul(lt(column, Tensor::from_host(context, {batch, 1, tokens, 1}, std::move(seen.behind))),
             gt(column, Tensor::from_host(context, {batch, 1, tokens, 1}, std::move(seen.before))));
}

}  // namespace

Attention::Attention(std::string path, const AttentionOptions& options)
    : Layer(std::move(path)),
      options_(resolved(options)),
      qkv_(make_child<Linear>("qkv", options_.width, (options_.heads + 2 * options_.kv_heads) * options_.head_dim,
                              LinearOptions{.has_bias = options_.has_qkv_bias})),
      q_norm_(make_qk_norm("q_norm", options_.heads)),
      k_norm_(make_qk_norm("k_norm", options_.kv_heads)),
      sinks_(options_.has_sinks ? &add_parameter("sinks", {options_.heads}, {.normal_std = kWeightDeviation}, false)
                                : nullptr),
      dropout_(make_child<Dropout>("dropout", options_.dropout)),
      out_(make_child<Linear>("out", options_.heads * options_.head_dim, options_.width,
                              LinearOptions{.has_bias = options_.has_bias, .init = options_.out_init})) {
  const std::int64_t queries = options_.heads * options_.head_dim, keys = options_.kv_heads * options_.head_dim;
  if (!options_.is_one_matrix) qkv_.weight().set_matrix_rows({queries, keys, keys});
  qkv_.set_row_blocks({queries, keys, keys});
}

RMSNorm* Attention::make_qk_norm(const char* name, std::int64_t heads) {
  if (!options_.qk_norm_eps) return nullptr;
  const std::int64_t width = options_.head_dim * (options_.has_qk_norm_of_all ? heads : 1);
  return &make_child<RMSNorm>(name, width, *options_.qk_norm_eps, options_.qk_norm_offset);
}

Attention::OwnHeads Attention::own_heads() const {
  const ParameterPart& part = qkv_.weight().part();
  if (part.is_whole() || part.dim != 0) return {options_.heads, options_.kv_heads, nullptr};
  const auto refuse = [&](const std::string& why, const char* what_to_do) {
    throw UsageError(fmt::format("attention \"{}\" is cut over {} ranks, and {}", path(), part.count, why), what_to_do);
  };
  if (options_.heads % part.count != 0 || options_.kv_heads % part.count != 0)
    refuse(fmt::format("its {} heads share {} of keys", options_.heads, options_.kv_heads),
           "cut it over a number of ranks that divides both");
  if (dropout_.is_active())
    refuse("drops probabilities, which each rank would draw for its heads alike", "use no dropout of attention");
  if (sinks_ != nullptr && sinks_->part().is_whole()) refuse("its sinks are whole", "cut them on dim 0, too");
  return {options_.heads / part.count, options_.kv_heads / part.count, qkv_.find_ranks()};
}

Tensor Attention::normalized(const Tensor& qkv, const OwnHeads& own) {
  if (q_norm_ == nullptr) return qkv;
  if (own.others != nullptr) return normalized_part(qkv, own);
  if (!options_.has_qk_norm_of_all)
    return qk_norm(qkv, q_norm_->weight(), k_norm_->weight(), options_.heads, options_.kv_heads,
                   {.eps = q_norm_->eps(), .offset = q_norm_->offset()});
  const std::int64_t queries = options_.heads * options_.head_dim, keys = options_.kv_heads * options_.head_dim;
  return concat({(*q_norm_)(slice(qkv, -1, 0, queries)), (*k_norm_)(slice(qkv, -1, queries, keys)),
                 slice(qkv, -1, queries + keys, keys)},
                -1);
}

Tensor Attention::normalized_part(const Tensor& qkv, const OwnHeads& own) {
  const std::int64_t dim = options_.head_dim, queries = own.heads * dim, keys = own.kv_heads * dim;
  const bool is_of_all = options_.has_qk_norm_of_all;
  const auto norm = [&](RMSNorm& by, std::int64_t first, std::int64_t heads, std::int64_t all_heads) {
    const Tensor rows = slice(qkv, -1, first, heads * dim);
    const std::int64_t lines = rows.numel() / rows.shape()[-1];
    const Tensor x = cast(rows, DType::f32).reshape({lines, is_of_all ? 1 : heads, is_of_all ? heads * dim : dim});
    Tensor squares = sum(x * x, {-1}, true),
           weight = cast(as_tensor(x.context(), by.weight()), DType::f32) + by.offset();
    if (is_of_all) {
      if (by.weight().part().is_whole())
        throw UsageError(fmt::format("\"{}\" is whole, and the heads that it is of are cut", by.path()),
                         "cut its weight on dim 0, too");
      squares = input_of_parts(*own.others, sum_of_parts(*own.others, squares));
    } else {
      weight = input_of_parts(*own.others, weight);
    }
    const float count = static_cast<float>(is_of_all ? all_heads * dim : dim);
    return cast((x * rsqrt(squares * (1 / count) + by.eps()) * weight).reshape(rows.shape()), qkv.dtype());
  };
  return concat({norm(*q_norm_, 0, own.heads, options_.heads), norm(*k_norm_, queries, own.kv_heads, options_.kv_heads),
                 slice(qkv, -1, queries + keys, keys)},
                -1);
}

Tensor Attention::forward(const Tensor& x, const Documents& documents, const Tensor& mask) {
  return out_proj(heads(x, documents, mask));
}

Tensor Attention::out_proj(const Tensor& gathered) {
  const ForwardScope scope = enter();
  return output(out_(gathered));
}

Tensor Attention::heads(const Tensor& x, const Documents& documents, const Tensor& mask) {
  const ForwardScope scope = enter();
  const OwnHeads own = own_heads();
  Tensor qkv = normalized(qkv_(x), own);
  if (options_.rotary) {
    RotaryOptions turn = *options_.rotary;
    if (cache_ != nullptr) turn.first = cache_->seen();
    qkv = rotary(qkv, own.heads, own.kv_heads, turn, documents);
  }
  if (cache_ != nullptr) {
    if (!options_.is_causal || mask)
      throw UsageError(fmt::format("attention \"{}\" with a cache {}", path(), mask ? "and a mask" : "is not causal"),
                       "a cache is of tokens that see those before them, all or a window of them");
    const Tensor rows = cache_->rows(this, qkv.context(), 2 * own.kv_heads * options_.head_dim, qkv.dtype());
    return cached_attention(qkv, rows,
                            {.first = cache_->seen(),
                             .heads = own.heads,
                             .kv_heads = own.kv_heads,
                             .window = options_.window,
                             .sinks = sinks_});
  }
  if (dropout_.is_active() || !options_.is_causal || mask) return composed(qkv, own, documents, mask);
  return causal_attention(qkv, own.heads, own.kv_heads, options_.window, documents, sinks_);
}

/// softmax() of scores (B, heads, T, T) beside each head's sink, of which the sink's share is left out.
Tensor Attention::softmax_with_sinks(const Tensor& scores) {
  const Shape& shape = scores.shape();
  const Tensor sinks = cast(as_tensor(scores.context(), *sinks_), scores.dtype()).reshape({1, shape[1], 1, 1});
  return slice(softmax(concat({scores, expand(sinks, {shape[0], shape[1], shape[2], 1})}, 3)), 3, 0, shape[3]);
}

/// Attention of general ops, which keep the probabilities: each of them can be dropped, or be 0.
Tensor Attention::composed(const Tensor& qkv, const OwnHeads& own, const Documents& documents, const Tensor& mask) {
  const std::int64_t batch = qkv.shape()[0], tokens = qkv.shape()[1], dim = options_.head_dim;
  const std::int64_t groups = own.kv_heads, each = own.heads / groups;
  const auto heads_of = [&](std::int64_t first, std::int64_t heads) {  // (B, heads, T, D)
    return transpose(slice(qkv, 2, first * dim, heads * dim).reshape({batch, tokens, heads, dim}), 1, 2);
  };
  const Tensor q = heads_of(0, own.heads).reshape({batch, groups, each * tokens, dim});
  const Tensor k = heads_of(own.heads, groups), v = heads_of(own.heads + groups, groups);
  const Tensor scores = matmul(q * (1 / std::sqrt(static_cast<float>(dim))), transpose(k, 2, 3));
  constexpr float kUnseen = -1e30f;
  Tensor seen = where(seen_by(qkv.context(), {batch, tokens}, options_, documents),
                      scores.reshape({batch, own.heads, tokens, tokens}), kUnseen);
  if (mask) seen = where(mask, seen, kUnseen);
  const Tensor shares = sinks_ != nullptr ? softmax_with_sinks(seen) : softmax(seen);
  const Tensor kept = dropout_(shares).reshape({batch, groups, each * tokens, tokens});
  const Tensor y = matmul(kept, v).reshape({batch, own.heads, tokens, dim});
  return transpose(y, 1, 2).reshape({batch, tokens, own.heads * dim});
}

}  // namespace zs
