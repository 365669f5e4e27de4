#include "model/train/session/preference_loss.h"

#include <limits>

#include "runtime/base/check.h"
#include "runtime/tensor/arithmetic.h"
#include "runtime/tensor/layout.h"
#include "runtime/tensor/reduction.h"

namespace zs {
namespace {

constexpr float kMost = std::numeric_limits<float>::max();

Tensor log_sigmoid(const Tensor& x) { return clamp(x, -kMost, 0) - log(exp(-abs(x)) + 1.0f); }

/// Loss of a pair by how much more probable its chosen sequence has become, and its derivative.
struct PairLoss {
  Tensor value, slope;
};

PairLoss pair_loss(const Config::Preference& options, const Tensor& gain) {
  const auto beta = static_cast<float>(options.beta);
  if (options.loss == "ipo") {
    const Tensor miss = gain - 1 / (2 * beta);
    return {miss * miss, miss * 2.0f};
  }
  const auto smoothing = static_cast<float>(options.label_smoothing);
  const Tensor z = gain * beta - (options.loss == "simpo" ? static_cast<float>(options.margin) : 0.0f);
  return {log_sigmoid(z) * (smoothing - 1) - log_sigmoid(-z) * smoothing,
          (sigmoid(z) * smoothing - sigmoid(-z) * (1 - smoothing)) * beta};
}

}  // namespace

PreferenceTerms preference_terms(const Config::Preference& options, const std::vector<Tensor>& sums,
                                 const std::vector<Tensor>& reference, const Tensor& counted) {
  const std::int64_t pairs = std::ssize(sums) / 2;
  ZS_CHECK(pairs > 0 && std::ssize(sums) % 2 == 0, "{} sequences are no pairs", sums.size());
  const bool has_means = options.loss != "dpo";
  const float share = 1 / static_cast<float>(pairs), all = static_cast<float>(counted.numel());
  const auto beta = static_cast<float>(options.beta);
  PreferenceTerms terms;
  std::vector<Tensor> weights;
  const auto add_to = [&](Tensor& mean, const Tensor& x) { mean = mean ? mean + x * share : x * share; };
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    Tensor rows[2], scales[2], gains[2];
    for (int i = 0; i < 2; ++i) {
      const auto row = static_cast<std::size_t>(2 * pair + i);
      rows[i] = counted.rows(2 * pair + i, 1);
      scales[i] = has_means ? 1.0f / clamp(sum(rows[i]).reshape({1}), 1, kMost) : Tensor{};
      const Tensor gain = reference.empty() ? -sums[row] : reference[row] - sums[row];
      gains[i] = has_means ? gain * scales[i] : gain;
    }
    const PairLoss loss = pair_loss(options, gains[0] - gains[1]);
    for (int i = 0; i < 2; ++i) {
      const Tensor weight = loss.slope * (i == 0 ? -all * share : all * share);
      weights.push_back(rows[i] * (has_means ? weight * scales[i] : weight));
    }
    add_to(terms.loss, loss.value);
    add_to(terms.chosen, gains[0] * beta);
    add_to(terms.rejected, gains[1] * beta);
    add_to(terms.accuracy, gt(gains[0], gains[1]));
  }
  terms.weights = concat(weights, 0);
  return terms;
}

}  // namespace zs
