#pragma once

#include <string>

#include "bench/step/step_bench.h"

namespace zs::bench {

/// Runs the step, and says what being watched costs in it: the record of each operation, the comparison of orders
/// before the update, and the watchdog's looks. The largest of the ranks, which are those of a RankProgram. Collective;
/// blocks the host.
std::string watch_cost(World& world, const StepOptions& options, const Config& config);

}  // namespace zs::bench
