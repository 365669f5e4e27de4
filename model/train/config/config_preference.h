#pragma once

#include "model/train/config/config_resolve.h"

namespace zs {

/// Checks what data.format = "preference" goes with: pairs are two sequences each, in one micro-batch, and for DPO and
/// IPO beside adapters, without which the model is the reference.
void check_preference(ConfigDraft& draft);

}  // namespace zs
