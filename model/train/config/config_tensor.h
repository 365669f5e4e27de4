#pragma once

#include <string>
#include <vector>

#include "model/train/config/config_resolve.h"
#include "runtime/shard/placement/rank_grid.h"

namespace zs {

/// Axis that [tensor] cuts products over.
inline constexpr const char* kTensorAxis = "tensor";

/// Checks what [tensor] goes with.
void check_tensor_over_ranks(ConfigDraft& draft);
/// Error(config) where so many ranks have no groups as [tensor] says.
void check_tensor_ranks(const Config& config, int ranks);
/// Axes of the job's grid, the last of which products are cut over; none: they are not cut.
std::vector<GridAxis> tensor_grid(const Config& config, int ranks);
/// Share of the data of a rank of so many, as that grid has it; of all where they have no such grid.
DataShare data_share_of(const Config& config, int rank, int ranks);
/// Line for a plan of so many ranks, each of which sends so many bytes along the axis in a micro-batch. Empty: nothing
/// is cut.
std::string describe_tensor(const Config& config, int ranks, std::int64_t sent_bytes);

}  // namespace zs
