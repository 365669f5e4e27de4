#pragma once

#include "runtime/base/int8_blocks.h"

namespace zs {

/// How the elements of a collective travel: as they are, or in blocks of whole numbers (runtime/base/int8_blocks.h).
enum class CommDType : std::uint8_t { exact, int8 };

}  // namespace zs
