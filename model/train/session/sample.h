#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "comm/world.h"
#include "model/train/session/session.h"
#include "model/train/session/token_window.h"

namespace zs {

/// Options by which the next token follows from its logits: of the `top_k` most likely tokens (0: of all) the fewest
/// that together have the probability `top_p`, at least one, and of these one by softmax(logits / temperature).
/// Temperature 0: the most likely one. Of tokens that are as likely, the lower is taken for the more likely.
struct SampleOptions {
  double temperature = 0.8;
  std::int64_t top_k = 0;
  double top_p = 1;
  std::uint64_t seed = 0;
};

/// The token that `uniform`, in [0, 1), chooses. Error(non_finite) where logits are not finite.
std::int32_t draw_token(const std::vector<float>& logits, const SampleOptions& options, double uniform);

/// Task that a sample is made from.
struct SampleTask {
  std::vector<std::int32_t> prompt;  ///< not empty
  std::int64_t count = 0;            ///< tokens to draw
  SampleOptions options = {};
  std::vector<std::int32_t> ends = {};  ///< tokens after which nothing is drawn
  /// Asked before each token, the same on every rank; fewer are drawn where it says so. Null: never.
  std::function<bool()> stops = {};
  /// Gets each token that is drawn, but an end. Null: nobody does.
  std::function<void(std::int32_t token)> draws = {};
};

/// Tokens without the end that they came to, if any: what of drawn tokens is text.
std::vector<std::int32_t> without_end(std::vector<std::int32_t> drawn, const SampleTask& task);

/// The tokens that are drawn after the prompt, from random numbers keyed by (seed, place): the same at any number of
/// ranks, and those of the first on every rank. It sees the last tokens, as many as a training sequence has at most:
/// later positions were never trained. Where they become more, the older half is forgotten (TokenWindow). Collective;
/// blocks.
std::vector<std::int32_t> sample_tokens(Session& session, World& world, const SampleTask& task);
/// Tokens that are drawn in the same way after what the window has seen, of which the prompt is what follows. It then
/// has seen the prompt and all that is drawn but the last token; nothing where nothing is drawn.
std::vector<std::int32_t> sample_tokens(TokenWindow& window, World& world, const SampleTask& task);

}  // namespace zs
