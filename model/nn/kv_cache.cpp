#include "model/nn/kv_cache.h"

namespace zs {

KvCache::KvCache(std::int64_t capacity) : capacity_(capacity) {}

KvCache::~KvCache() = default;

Tensor KvCache::rows(const void* owner, Context& context, std::int64_t width, DType dtype) {
  Tensor& rows = rows_[owner];
  if (!rows) rows = Tensor::empty(context, {capacity_, width}, dtype, "kv_cache");
  return rows;
}

}  // namespace zs
