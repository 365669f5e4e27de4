#pragma once

#include "model/train/config/config_resolve.h"

namespace zs {

/// True if parameters are frozen: all of a model beside its adapters, or those that train.frozen names.
bool has_frozen(const Config& config);
/// Checks train.frozen, and settles how frozen weights are held (precision.frozen) and whether checkpoints have them
/// (checkpoint.frozen): by what the folder of model.path has.
void resolve_frozen(ConfigDraft& draft);

}  // namespace zs
