#pragma once

#include "model/train/config/config_resolve.h"

namespace zs {

/// Fills in what of lora.* follows from the adapter in lora.path and from other keys, and checks it against the model,
/// whose keys are resolved.
void resolve_lora(ConfigDraft& draft);

}  // namespace zs
