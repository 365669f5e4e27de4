#pragma once

#include <vector>

#include "model/train/config/config.h"
#include "runtime/tensor/tensor.h"

namespace zs {

/// Terms that follow from the losses of pairs of sequences, of which one is preferred; f32, without gradient.
struct PreferenceTerms {
  Tensor loss;     ///< (1), mean over the pairs
  Tensor weights;  ///< (B, T): with them the mean cross entropy over all targets has this loss's gradient
  /// (1) each, means over the pairs: beta (log p - log p of the reference) of both, and how often that of the chosen
  /// one is above.
  Tensor chosen, rejected, accuracy;
};

/// Terms of DPO (Rafailov et al. 2023, equation 7; label smoothing as Mitchell 2023), IPO (Azar et al. 2023, equation
/// 17) or SimPO (Meng et al. 2024, equation 6), the latter two of mean log probabilities. Sequences 2 i and 2 i + 1 are
/// a pair's chosen and rejected one. `sums`: the sum of each sequence's cross entropies; `reference`: those of the
/// reference model; empty: none. `counted`, (B, T): 1 for a target, else 0.
PreferenceTerms preference_terms(const Config::Preference& options, const std::vector<Tensor>& sums,
                                 const std::vector<Tensor>& reference, const Tensor& counted);

}  // namespace zs
