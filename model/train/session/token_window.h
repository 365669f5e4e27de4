#pragma once

#include <cstdint>
#include <vector>

#include "model/train/session/session.h"

namespace zs {

/// The tokens that a model sees of one text, the last ones, as it grows: at most as many as a training sequence has.
/// Where they would become more, the older half is forgotten, and those that are left begin at the first position. Of
/// what was seen before, keys and values are kept, so that a token costs one forward of its own. One host thread uses
/// it; the session outlives it.
class TokenWindow {
 public:
  explicit TokenWindow(Session& session) : session_(session), most_(session.config().train.sequence), cache_(most_) {}

  /// The text goes on with these tokens, of which there is at least one: logits (vocab) of what follows. Collective;
  /// blocks.
  std::vector<float> next_logits(const std::vector<std::int32_t>& tokens);
  /// The most that it does, for the meta device: a window full of tokens, and one that follows fewer.
  static void enqueue_longest(Session& session);

 private:
  Session& session_;
  std::int64_t most_;
  KvCache cache_;
  std::vector<std::int32_t> seen_;
};

}  // namespace zs
