#pragma once

#include <optional>

#include "model/nn/dropout.h"
#include "model/nn/kv_cache.h"
#include "model/nn/linear.h"
#include "model/nn/norm.h"

namespace zs {

/// Options of Attention: heads, which tokens see which, and what else it has.
struct AttentionOptions {
  std::int64_t width = 0, heads = 0;
  std::int64_t kv_heads = 0;  ///< each shared by heads / kv_heads query heads, neighbours; 0: as many as heads
  std::int64_t head_dim = 0;  ///< 0: width / heads
  std::int64_t window = 0;    ///< a token sees so many to each side, itself included; 0: all
  bool is_causal = true;      ///< a token sees none after it; else those too, and (B, heads, T, T) is kept
  bool has_qkv_bias = true, has_bias = true;  ///< has_bias: of the projection after attention
  std::optional<RotaryOptions> rotary = {};   ///< queries and keys are turned by their positions
  std::optional<float> qk_norm_eps = {};      ///< an RMS norm of each query head, and of each key head, before that
  bool has_qk_norm_of_all = false;            ///< these norms are of all heads together
  float qk_norm_offset = 0;                   ///< offset of their factors (RMSNorm)
  bool has_sinks = false;                     ///< a logit more in the softmax of each of a head's rows, without a value
  bool is_one_matrix = false;                 ///< "qkv" is one, not three (Parameter::matrix_rows)
  Init out_init = {.normal_std = kWeightDeviation};
  /// Share of the probabilities that is dropped, in training: they are then kept whole, (B, heads, T, T)
  float dropout = 0;
};

/// Self-attention of heads that may share keys and values (Vaswani et al. 2017; Ainslie et al. 2023): "qkv", one
/// product whose rows are the queries', then the keys', then the values'; "q_norm" and "k_norm" where there are such
/// norms; "sinks" (heads) of some; "dropout", which has no parameters; "out".
///
/// Its unit's Partition may cut it by heads over ranks that read the same data: {"*.qkv.*", 0}, {"*.out.weight", 1},
/// and, where has_qk_norm_of_all, {"*_norm.weight", 0}, and where has_sinks, {"*.sinks", 0}. Each rank then has its
/// heads of queries, of keys and of values. UsageError of a forward where the ranks do not divide both numbers of
/// heads, or probabilities are dropped.
class Attention : public Layer<Attention> {
 public:
  Attention(std::string path, const AttentionOptions& options);

  /// (B, T, C) -> (B, T, C). `mask`: f32, bf16 or i32, to be broadcast to (B, heads, T, T), 0 where the token of the
  /// row does not see that of the column, though it could as the options say; each token must see one at least. With a
  /// mask (B, heads, T, T) is kept.
  Tensor forward(const Tensor& x, const Documents& documents = {}, const Tensor& mask = {});
  /// The two halves of forward, for who recomputes the first. What the heads gather: (B, T, heads head_dim).
  Tensor heads(const Tensor& x, const Documents& documents = {}, const Tensor& mask = {});
  Tensor out_proj(const Tensor& gathered);
  /// True if it has a parameter "sinks".
  bool has_sinks() const { return sinks_ != nullptr; }
  /// True if its norms of queries and keys are of all heads together.
  bool has_norm_of_all_heads() const { return q_norm_ != nullptr && options_.has_qk_norm_of_all; }
  /// Sets the cache: from here on a forward is of the tokens of one sequence, (1, T, C), that follow those which the
  /// cache has seen. It keeps their keys and values there, and records no gradient; they are all of one document. Null:
  /// as before. UsageError in a forward that has a mask, or is not causal.
  void use_cache(KvCache* cache) { cache_ = cache; }

 private:
  /// Heads that this rank computes, and who has the others; null: nobody.
  struct OwnHeads {
    std::int64_t heads, kv_heads;
    Communicator* others;
  };
  OwnHeads own_heads() const;
  RMSNorm* make_qk_norm(const char* name, std::int64_t heads);
  Tensor normalized(const Tensor& qkv, const OwnHeads& own);
  /// normalized() of a part of the heads: of general ops, as weights or sums are those of all ranks.
  Tensor normalized_part(const Tensor& qkv, const OwnHeads& own);
  Tensor softmax_with_sinks(const Tensor& scores);
  Tensor composed(const Tensor& qkv, const OwnHeads& own, const Documents& documents, const Tensor& mask);

  AttentionOptions options_;
  Linear& qkv_;
  RMSNorm *q_norm_, *k_norm_;  // null: none
  Parameter* sinks_;           // null: none
  Dropout& dropout_;
  Linear& out_;
  KvCache* cache_ = nullptr;
};

}  // namespace zs
