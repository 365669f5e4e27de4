#pragma once

#include "model/train/config/config_resolve.h"

namespace zs {

/// Fills in what `model.*` leaves out, from the preset, the family's defaults and what follows from other keys. What a
/// family is and has: model/families/family.h.
void resolve_model(ConfigDraft& draft);
/// Checks the sizes of heads and what turns them.
void check_model_sizes(ConfigDraft& draft);
/// Checks these keys against each other, and against the family and the data.
void check_model(ConfigDraft& draft);

}  // namespace zs
