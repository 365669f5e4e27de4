#include "model/train/trainer/best_validation.h"

#include <bit>
#include <cmath>
#include <sstream>

#include "runtime/base/check.h"

namespace zs {

bool BestValidation::note(std::int64_t at_step, float validation) {
  if (!std::isfinite(validation) || (is_known() && validation >= loss)) {
    ++since;
    return false;
  }
  *this = {at_step, validation, 0};
  return true;
}

std::string BestValidation::text() const {
  return fmt::format("{} {} {}", step, std::bit_cast<std::uint32_t>(loss), since);
}

BestValidation BestValidation::parse(std::string_view text) {
  BestValidation best;
  std::uint32_t bits = 0;
  std::istringstream in{std::string(text)};
  ZS_CHECK(in >> best.step >> bits >> best.since, "a best validation of \"{}\"", text);
  best.loss = std::bit_cast<float>(bits);
  return best;
}

}  // namespace zs
