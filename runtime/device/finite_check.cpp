#include "runtime/device/finite_check.h"

#include <algorithm>
#include <cmath>

namespace zs {
namespace {

double element(const Buffer& buffer, std::int64_t i) {
  return buffer.dtype == DType::bf16 ? static_cast<double>(static_cast<float>(buffer.as<BFloat16>()[i]))
                                     : static_cast<double>(buffer.as<float>()[i]);
}

struct NotFinite {
  std::int64_t first = -1, count = 0;
};

NotFinite not_finite(const Buffer& buffer) {
  NotFinite found;
  if ((buffer.dtype != DType::f32 && buffer.dtype != DType::bf16) || buffer.data == nullptr) return found;
  for (std::int64_t i = 0; i < buffer.elems; ++i) {
    if (std::isfinite(element(buffer, i))) continue;
    if (found.count++ == 0) found.first = i;
  }
  return found;
}

}  // namespace

void FiniteCheck::look(std::int64_t number, const OpInfo& info, StreamRole stream, const OpPlace& place) {
  {
    const std::lock_guard lock(mutex_);
    if (first_ && number_ < number) return;
  }
  for (std::size_t i = 0; i < info.writes.size(); ++i) {
    const Buffer& written = info.writes[i];
    const NotFinite found = not_finite(written);
    if (found.count == 0) continue;
    const bool read_some = std::any_of(info.reads.begin(), info.reads.end(),
                                       [](const Buffer& read) { return not_finite(read).count > 0; });
    const std::lock_guard lock(mutex_);
    if (first_ && number_ < number) return;
    number_ = number;
    first_ = Finding{
        info.name, stream, place, i, found.first, written.elems, found.count, element(written, found.first), read_some};
    return;
  }
}

}  // namespace zs
