#include "model/train/session/sample.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/base/random.h"

namespace zs {
namespace {

/// Softmax(logits / temperature), carried in double and not normalised, of the tokens that may be drawn; 0 of the
/// others.
std::vector<double> weights_of(const std::vector<float>& logits, const SampleOptions& options) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> weights(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) weights[i] = std::exp((logits[i] - largest) / options.temperature);
  const auto all = std::ssize(logits), most = options.top_k > 0 ? std::min<std::ptrdiff_t>(options.top_k, all) : all;
  if (most == all && options.top_p >= 1) return weights;
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::partial_sort(order.begin(), order.begin() + most, order.end(), [&](std::size_t a, std::size_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  double sum = 0, kept = 0;
  for (std::ptrdiff_t i = 0; i < most; ++i) sum += weights[order[static_cast<std::size_t>(i)]];
  std::ptrdiff_t count = 0;
  while (count < most && (count == 0 || kept < options.top_p * sum))
    kept += weights[order[static_cast<std::size_t>(count++)]];
  std::for_each(order.begin() + count, order.end(), [&](std::size_t token) { weights[token] = 0; });
  return weights;
}

bool is_end(std::int32_t token, const SampleTask& task) {
  return std::find(task.ends.begin(), task.ends.end(), token) != task.ends.end();
}

}  // namespace

std::int32_t draw_token(const std::vector<float>& logits, const SampleOptions& options, double uniform) {
  if (!std::all_of(logits.begin(), logits.end(), [](float value) { return std::isfinite(value); }))
    throw Error(ExitCode::non_finite, "the logits of the next token are not finite", "sample", "look at the weights");
  if (options.temperature == 0)
    return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const std::vector<double> weights = weights_of(logits, options);
  std::vector<double> cumulative(weights.size());
  std::partial_sum(weights.begin(), weights.end(), cumulative.begin());
  const auto found = std::upper_bound(cumulative.begin(), cumulative.end(), uniform * cumulative.back());
  if (found != cumulative.end()) return static_cast<std::int32_t>(found - cumulative.begin());
  return static_cast<std::int32_t>(
      std::find_if(weights.rbegin(), weights.rend(), [](double w) { return w > 0; }).base() - weights.begin() - 1);
}

std::vector<std::int32_t> without_end(std::vector<std::int32_t> drawn, const SampleTask& task) {
  if (!drawn.empty() && is_end(drawn.back(), task)) drawn.pop_back();
  return drawn;
}

std::vector<std::int32_t> sample_tokens(Session& session, World& world, const SampleTask& task) {
  TokenWindow window(session);
  return sample_tokens(window, world, task);
}

std::vector<std::int32_t> sample_tokens(TokenWindow& window, World& world, const SampleTask& task) {
  const CounterRng rng(task.options.seed, hash_name("sample"));
  std::vector<std::int32_t> drawn;
  std::vector<std::int32_t> seen = task.prompt;
  for (std::int64_t i = 0; i < task.count && !(task.stops && task.stops()); ++i) {
    const std::vector<float> logits = window.next_logits(seen);
    // Ranks on other processors may round otherwise.
    const std::int32_t own = draw_token(logits, task.options, rng.uniform(static_cast<std::uint64_t>(i)));
    drawn.push_back(static_cast<std::int32_t>(world.agree(world.rank() == 0 ? own + 1 : 0, "").code - 1));
    if (is_end(drawn.back(), task)) break;
    if (task.draws) task.draws(drawn.back());
    seen = {drawn.back()};
  }
  return drawn;
}

}  // namespace zs
