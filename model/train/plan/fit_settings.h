#pragma once

#include <vector>

#include "model/train/plan/memory_check.h"

namespace zs {

/// Setting by which a run may need less memory, whatever its micro-batch and sequence length are.
struct FitSetting {
  Config config;
  bool is_configured = false;
};

/// The cheapest first: what the host or a disk keeps costs most, then recomputation, then a strategy that shards more.
/// Of those the configuration allows; the one it has is among them. Residence changes only where other memory than the
/// machine's own is short or the configuration names a disk, the strategy only where there are ranks that share one set
/// of masters or may.
std::vector<FitSetting> fit_settings(const MemoryDemand& demand);

}  // namespace zs
