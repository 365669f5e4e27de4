#pragma once

#include "model/train/config/config_resolve.h"

namespace zs {

/// Defaults that follow from other keys: those of training as such, and those of training a folder's model further.
void resolve_defaults(ConfigDraft& draft);
/// Checks that steps or epochs are given, one of them.
void check_steps(ConfigDraft& draft);
/// Checks sizes of batches, which count tokens in 64 bits.
void check_sizes(ConfigDraft& draft);
/// Checks the schedule: a decay that begins within the warm-up would take steps from it.
void check_schedule(ConfigDraft& draft);

}  // namespace zs
