#include "model/train/sample.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/random.h"

namespace zs {
namespace {

constexpr double kTemperature = 0.8;

/// Inverse transform sampling of softmax(logits / temperature), carried in double.
std::int32_t draw(const std::vector<float>& logits, double uniform) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  std::vector<double> cumulative(logits.size());
  double sum = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) cumulative[i] = sum += std::exp((logits[i] - largest) / kTemperature);
  const auto found = std::upper_bound(cumulative.begin(), cumulative.end(), uniform * sum);
  return static_cast<std::int32_t>(std::min<std::ptrdiff_t>(found - cumulative.begin(), std::ssize(cumulative) - 1));
}

}  // namespace

std::vector<std::int32_t> sample_tokens(Session& session, std::vector<std::int32_t> prompt, std::int64_t count, std::uint64_t seed,
                                        const std::function<bool()>& stops) {
  const CounterRng rng(seed, hash_name("sample"));
  const std::int64_t window = session.config().train.sequence;
  std::vector<std::int32_t> tokens = std::move(prompt), drawn;
  for (std::int64_t i = 0; i < count && !stops(); ++i) {
    const auto first = std::max<std::ptrdiff_t>(0, std::ssize(tokens) - window);
    const std::vector<float> logits = session.next_token_logits({tokens.begin() + first, tokens.end()});
    drawn.push_back(draw(logits, rng.uniform(static_cast<std::uint64_t>(i))));
    tokens.push_back(drawn.back());
  }
  return drawn;
}

std::string bytes_of(const std::vector<std::int32_t>& tokens) {
  std::string text;
  for (const std::int32_t token : tokens) text += token < 256 ? static_cast<char>(token) : '\0';
  return text;
}

}  // namespace zs
