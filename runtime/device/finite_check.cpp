#include "runtime/device/finite_check.h"

#include <algorithm>
#include <cmath>
#include <utility>

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

Work FiniteCheck::watched(const OpInfo& info, StreamRole stream, const char* phase, Work work) {
  Place place = place_;
  place.phase = phase;
  return [this, number = ops_++, info, stream, place = std::move(place), work = std::move(work)](ExecContext& exec) {
    work(exec);
    look(number, info, stream, place);
  };
}

void FiniteCheck::look(std::int64_t number, const OpInfo& info, StreamRole stream, const Place& place) {
  {
    const std::lock_guard lock(mutex_);
    if (first_ && number_ < number) return;
  }
  for (const Buffer& written : info.writes) {
    const NotFinite found = not_finite(written);
    if (found.count == 0) continue;
    const bool read_some = std::any_of(info.reads.begin(), info.reads.end(),
                                       [](const Buffer& read) { return not_finite(read).count > 0; });
    const std::lock_guard lock(mutex_);
    if (first_ && number_ < number) return;
    number_ = number;
    first_ = Finding{info.name, stream, place, found.first, written.elems, found.count, element(written, found.first),
                     read_some};
    return;
  }
}

}  // namespace zs
