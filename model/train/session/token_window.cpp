#include "model/train/session/token_window.h"

#include <algorithm>

namespace zs {

std::vector<float> TokenWindow::next_logits(const std::vector<std::int32_t>& tokens) {
  const bool is_full = !seen_.empty() && std::ssize(seen_) + std::ssize(tokens) > most_;
  seen_.insert(seen_.end(), tokens.begin(), tokens.end());
  if (!is_full && cache_.seen() > 0) return session_.next_token_logits(tokens, &cache_);
  const std::int64_t kept = std::min<std::int64_t>(std::ssize(seen_), is_full ? (most_ + 1) / 2 : most_);
  seen_.erase(seen_.begin(), seen_.end() - kept);
  cache_.clear();
  return session_.next_token_logits(seen_, &cache_);
}

void TokenWindow::enqueue_longest(Session& session) {
  const std::int64_t most = session.config().train.sequence;
  KvCache cache(most);
  session.enqueue_logits(std::vector<std::int32_t>(static_cast<std::size_t>(most)), &cache);
  if (most == 1) return;
  cache.clear();
  session.enqueue_logits(std::vector<std::int32_t>(static_cast<std::size_t>(most - 1)), &cache);
  session.enqueue_logits({0}, &cache);
}

}  // namespace zs
