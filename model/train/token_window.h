#pragma once

#include <cstdint>
#include <vector>

#include "model/train/session.h"

namespace zs {

/// The tokens that a model sees of one text, the last ones, as it grows: at most as many as a training sequence has. Where they would
/// become more, the older half is forgotten, and those that are left begin at the first position. One host thread uses it.
class TokenWindow {
 public:
  explicit TokenWindow(Session& session) : session_(session), most_(session.config().train.sequence) {}

  /// The text goes on with these tokens, of which there is at least one: logits (vocab) of what follows. Collective; blocks.
  std::vector<float> next_logits(const std::vector<std::int32_t>& tokens);

 private:
  Session& session_;
  std::int64_t most_;
  std::vector<std::int32_t> seen_;
};

}  // namespace zs
