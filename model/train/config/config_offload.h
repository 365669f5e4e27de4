#pragma once

#include "model/train/config/config_resolve.h"

namespace zs {

/// True if gradients may accumulate over micro-batches without being reduced to the masters': whole, or as the sums of
/// a cut that is finer than theirs or coarser.
bool accumulates_gradients(const Config& config);

/// True if the optimizer has moments: SGD without momentum keeps none.
bool has_moments(const Config& config);

/// Checks that what the host is to keep is there.
void check_offload(ConfigDraft& draft);

}  // namespace zs
