#pragma once

namespace zs {

/// "0.1.0"
const char* version();

}  // namespace zs
