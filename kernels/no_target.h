#pragma once

#include <cstdint>

namespace zs {

/// Target of a row of logits that is none of its columns. No data has it: a wrong target is an error as ever.
constexpr std::int32_t kNoTarget = -(1 << 30);

}  // namespace zs
