#pragma once

#include <cstdint>

#include "comm/world.h"
#include "runtime/device/device.h"

namespace zs {

/// Rate that the live line compares a step with: that, in GFLOP/s, at which all ranks together multiply matrices of
/// 1024 x 1024 of `dtype` now, the best of a few that they begin together. A tenth of a second's work; its memory is
/// given back. Collective; blocks the host.
double product_rate_gflops(World& world, const DeviceOptions& options, DType dtype);

/// Rate in GB a second at which all ranks together read and write while they copy 32 MiB each, the best of a few copies
/// that they begin together. Collective; blocks the host; its memory is given back.
double copy_rate_gb_s(World& world, const DeviceOptions& options);

/// FLOPs of a training step for each token: 6 for each parameter (LanguageModel::working_parameter_count), and 6 x
/// layers x width x sequence for causal attention, as model FLOPs utilisation counts them (Chowdhery et al. 2022,
/// arXiv:2204.02311, appendix B, with half of the attention matrix).
double flops_per_token(std::int64_t parameters, std::int64_t layers, std::int64_t width, std::int64_t sequence);

}  // namespace zs
