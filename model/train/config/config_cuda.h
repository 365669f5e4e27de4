#pragma once

#include "model/train/config/config_resolve.h"

namespace zs {

/// Checks what does not go with keys of `cuda`.
void check_cuda(ConfigDraft& draft);

/// Keys of `cuda` that are not as by default, and have no effect, in a configuration whose device is chosen
/// (cuda.libraries may have: where it leads to none, that chooses the CPU).
std::vector<std::string> unused_cuda_keys(const Config& config);

}  // namespace zs
