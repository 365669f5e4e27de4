#pragma once

#include "runtime/base/int8_blocks.h"

namespace zs {

/// Format in which the elements of a collective travel: as they are, or in blocks of integers
/// (runtime/base/int8_blocks.h).
enum class CommDType : std::uint8_t { exact, int8 };

}  // namespace zs
