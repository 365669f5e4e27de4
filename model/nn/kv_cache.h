#pragma once

#include <cstdint>
#include <map>

#include "runtime/tensor/tensor.h"

namespace zs {

/// The keys and values of one sequence's tokens, in every attention of a model: what a model needs of the tokens that
/// it has seen in order to go on. Memory is taken when an attention first asks for its rows. One host thread uses it;
/// it dies before its device.
class KvCache {
 public:
  /// Makes a cache for so many tokens.
  explicit KvCache(std::int64_t capacity);
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  std::int64_t capacity() const { return capacity_; }
  /// Tokens whose rows count: the position of the next one.
  std::int64_t seen() const { return seen_; }
  void add_seen(std::int64_t tokens) { seen_ += tokens; }
  /// The next token is the first.
  void clear() {
    seen_ = 0;
    kept_.clear();
  }

  /// (capacity, width): of the attention `owner`, a token's keys, then its values.
  Tensor rows(const void* owner, Context& context, std::int64_t width, DType dtype);
  /// Place for what `owner` has of the weights alone, which stay as they are while tokens follow each other. Empty at
  /// first.
  Tensor& kept(const void* owner) { return kept_[owner]; }

 private:
  std::int64_t capacity_, seen_ = 0;
  std::map<const void*, Tensor> rows_, kept_;
};

}  // namespace zs
