#include "model/train/token_window.h"

#include <algorithm>

namespace zs {

std::vector<float> TokenWindow::next_logits(const std::vector<std::int32_t>& tokens) {
  const bool is_full = !seen_.empty() && std::ssize(seen_) + std::ssize(tokens) > most_;
  seen_.insert(seen_.end(), tokens.begin(), tokens.end());
  const std::int64_t kept = std::min<std::int64_t>(std::ssize(seen_), is_full ? (most_ + 1) / 2 : most_);
  seen_.erase(seen_.begin(), seen_.end() - kept);
  return session_.next_token_logits(seen_);
}

}  // namespace zs
