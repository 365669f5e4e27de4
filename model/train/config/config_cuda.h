#pragma once

#include "model/train/config/config_resolve.h"

namespace zs {

/// What does not go with keys of `cuda`.
void check_cuda(ConfigDraft& draft);

}  // namespace zs
