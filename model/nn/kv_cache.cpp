#include "model/nn/kv_cache.h"

#include "runtime/base/usage_error.h"

namespace zs {

KvCache::KvCache(std::int64_t capacity) : capacity_(capacity) {
  if (capacity < 1) throw UsageError(fmt::format("a KvCache of {} positions", capacity), "give it 1 or more");
}

KvCache::~KvCache() = default;

Tensor KvCache::rows(const void* owner, Context& context, std::int64_t width, DType dtype) {
  Tensor& rows = rows_[owner];
  if (!rows) rows = Tensor::empty(context, {capacity_, width}, dtype, "kv_cache");
  return rows;
}

}  // namespace zs
