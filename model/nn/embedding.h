#pragma once

#include "model/nn/linear.h"

namespace zs {

/// Rows of a table by their numbers: "weight" (rows, width).
///
/// Its unit's Partition may cut it on dim 0 over an axis whose ranks read the same data: each rank looks up its rows,
/// and the sum over the ranks, of f32, is alike on each.
class Embedding : public Layer<Embedding> {
 public:
  /// Looking up row `padding` gives it no gradient; -1: there is no such row.
  Embedding(std::string path, std::int64_t rows, std::int64_t width, Init init = {.normal_std = kWeightDeviation},
            std::int64_t padding = -1);

  /// (B, T) i32 -> (B, T, C). With `positions`, of at least first + T rows, row first + t of it is added to token t.
  /// Each document begins at row `first`.
  Tensor forward(const Tensor& ids, Embedding* positions = nullptr, std::int64_t first = 0,
                 const Documents& documents = {});

  /// Weight, for a head that is tied to it.
  Parameter& weight() { return weight_; }
  /// Gives it an adapter of this rank, which changes the rows that are looked up, and not a head that is tied to them.
  /// Called once, before the model is sharded.
  void add_adapter(const std::string& name, std::int64_t vocab, std::int64_t rank, float scale);

 private:
  /// (B, T, C) of ids whose rows ranks have parts of.
  Tensor sum_of_rows(Communicator& ranks, const Tensor& ids);

  Parameter& weight_;
  std::int64_t padding_;
  LoraAdapters* adapters_ = nullptr;  // null: none
  EmbeddingAdapter* adapter_ = nullptr;
};

}  // namespace zs
