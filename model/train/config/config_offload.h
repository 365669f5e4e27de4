#pragma once

#include "model/train/config/config_resolve.h"

namespace zs {

/// What the host is to keep must be there, and come back only for updates.
void check_offload(ConfigDraft& draft);

}  // namespace zs
