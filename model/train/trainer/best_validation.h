#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace zs {

/// The lowest validation loss so far, and how many validations it has been the lowest for. A value.
struct BestValidation {
  std::int64_t step = -1;  ///< below 0: there is none yet
  float loss = std::numeric_limits<float>::infinity();
  std::int64_t since = 0;  ///< validations that were no better, since then

  bool is_known() const { return step >= 0; }
  /// True if the validation after `step` is the best so far. One that is not finite is not, and counts as no better.
  bool note(std::int64_t at_step, float validation);
  /// Text for other ranks: all of it in one word.
  std::string text() const;
  static BestValidation parse(std::string_view text);
  bool operator==(const BestValidation&) const = default;
};

}  // namespace zs
