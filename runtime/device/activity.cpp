#include "runtime/device/activity.h"

#include <algorithm>
#include <cstring>

namespace zs {

void Activity::set(std::string_view text) noexcept {
  char bytes[sizeof(words_)] = {};
  std::memcpy(bytes, text.data(), std::min(text.size(), sizeof(bytes) - 1));
  for (std::size_t i = 0; i < words_.size(); ++i) {
    std::uint64_t word;
    std::memcpy(&word, bytes + 8 * i, 8);
    words_[i].store(word, std::memory_order_relaxed);
    if (word == 0) break;  // the rest is never read
  }
}

std::string Activity::get() const {
  char bytes[sizeof(words_) + 1] = {};
  for (std::size_t i = 0; i < words_.size(); ++i) {
    const std::uint64_t word = words_[i].load(std::memory_order_relaxed);
    std::memcpy(bytes + 8 * i, &word, 8);
    if (word == 0) break;
  }
  return bytes;
}

}  // namespace zs
