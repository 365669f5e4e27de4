#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/nn/dropout.h"
#include "model/nn/kv_cache.h"

namespace zs {

/// The vocabulary as stored: rows up to a multiple of 128; logits of the extra ones are masked.
constexpr std::int64_t padded_vocab(std::int64_t vocab) { return (vocab + 127) / 128 * 128; }

struct Routing;

struct LoraOptions {
  std::int64_t in = 0, rows = 0, rank = 0;
  std::int64_t first_row = 0;  ///< first row of the product's weight that the adapter changes
  std::int64_t experts = 0;    ///< number of experts, whose products of so many rows are grouped; 0: one product
  float scale = 1;             ///< factor of B A
  float dropout = 0;           ///< share of the input that is dropped, in training
  bool has_magnitude = false;  ///< DoRA
};

/// A product that adapters change: y = x weight^T + bias; the bias may be null.
struct AdaptedProduct {
  const Tensor& y;
  Parameter& weight;
  Parameter* bias;
};

/// A low-rank change of some rows of a product's weight (Hu et al. 2021): scale B A, with "lora_A.weight" (rank, in)
/// and "lora_B.weight" (rows, rank). A begins uniform within 1 / sqrt(in), which is Kaiming's with a = sqrt(5) (He et
/// al. 2015), and B at zero, so that the change begins at zero. Each adapter drops elements of its own.
///
/// With "lora_magnitude_vector" (rows), m, each row of W + scale B A is also multiplied by m and divided by its norm,
/// which has no gradient (DoRA, Liu et al. 2024, eq. 5 and section 4.3). What it changes is then m / norm (W + scale B
/// A) x - W x, both of the x that dropout has left, as in peft.
///
/// Of experts each has an A and a B of its own, one expert's rows below the other's, and there is neither a magnitude
/// nor dropout.
class LoraAdapter : public Layer<LoraAdapter> {
 public:
  LoraAdapter(std::string path, const LoraOptions& options);

  /// (..., in) -> (..., rows): what is added to the product's rows, f32. x as cast_input() has it.
  Tensor forward(const Tensor& x, const AdaptedProduct& product);
  /// Rows of experts, (N k, in) -> (N k, rows): what is added to their products.
  Tensor forward(const Tensor& x, const Routing& routing);
  /// Magnitudes with which the product begins as it is: the norms of its weight's rows, f32, while it is unsharded.
  Tensor first_magnitude(Context& context, const Parameter& weight) const { return row_norms(context, weight, false); }
  /// Null: it has none.
  Parameter* magnitude() const { return magnitude_; }
  /// x in the dtype of this adapter's unit.
  Tensor cast_input(const Tensor& x) const { return input(x); }
  const LoraOptions& options() const { return options_; }
  bool is_on() const { return is_on_; }
  void set_on(bool is_on) { is_on_ = is_on; }
  /// null: what follows from the weights alone is computed anew.
  void use_cache(KvCache* cache) { cache_ = cache; }

 private:
  /// (rows), f32: magnitudes through norms.
  Tensor row_factors(Context& context, const Parameter& weight);
  /// (rows), f32, without gradient: norms of the rows of the weight, with what A and B change or without.
  Tensor row_norms(Context& context, const Parameter& weight, bool with_change) const;
  /// The rows' product of x, without bias and adapter, f32.
  Tensor base_of(const Tensor& x, const AdaptedProduct& product) const;

  LoraOptions options_;
  Parameter &a_, &b_;
  Parameter* magnitude_;
  Dropout& dropout_;
  bool is_on_ = true;
  KvCache* cache_ = nullptr;
};

struct EmbeddingLoraOptions {
  std::int64_t vocab = 0, width = 0, rank = 0;
  float scale = 1;            ///< factor of A B
  std::int64_t padding = -1;  ///< that of the embedding
};

/// A low-rank change of an embedding: row i of scale A B^T, with "lora_embedding_A" (padded vocab, rank), of which peft
/// has the transpose, and "lora_embedding_B" (width, rank). A begins at zero, and B normal with the deviation 1.
class EmbeddingAdapter : public Layer<EmbeddingAdapter> {
 public:
  EmbeddingAdapter(std::string path, const EmbeddingLoraOptions& options);

  /// (B, T) i32 -> (B, T, width): what is added to the rows, f32.
  Tensor forward(const Tensor& ids);

 private:
  EmbeddingLoraOptions options_;
  Parameter &a_, &b_;
};

/// The adapters of one block, or that of the embedding: a unit of its own within the block's, so that they have their
/// own precision, and gradients and moments where the block's weights have none.
class LoraAdapters : public Module {
 public:
  explicit LoraAdapters(std::string path);

  bool is_block() const override { return true; }
  /// `name`: of the product, below the block: "self_attn.q_proj".
  LoraAdapter& add(const std::string& name, const LoraOptions& options);
  EmbeddingAdapter& add(const std::string& name, const EmbeddingLoraOptions& options);
  /// While it lives the adapters can be used.
  ForwardScope unsharded() const { return enter(); }
  /// Off: the products are as if there were no adapters.
  void set_on(bool is_on);
  bool is_on() const { return is_on_; }
  void use_cache(KvCache* cache);

 private:
  std::vector<LoraAdapter*> adapters_;
  bool is_on_ = true;
};

/// y, (..., out), of the product of x, (..., in), and what `adapters` add to it: each to rows of its own, in ascending
/// order.
Tensor add_adapters(const AdaptedProduct& product, const Tensor& x, std::span<LoraAdapter* const> adapters);

}  // namespace zs
