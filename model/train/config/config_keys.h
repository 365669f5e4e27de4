#pragma once

#include <limits>
#include <span>

#include "model/train/config/config_schema.h"

namespace zs {

/// The rows of the schema as they are written, one part after the other: the model, its data and its training; and how
/// that is sharded, run and saved.
std::span<const ConfigKey> keys_of_training();
std::span<const ConfigKey> keys_of_running();

/// Ranges for these rows. The upper bounds are sanity limits: wide enough for any real run, small enough that no
/// product of two of them overflows.
namespace config_ranges {

inline constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr ConfigRange between(double min, double max) { return {min, max, false, false}; }
constexpr ConfigRange positive(double max) { return {0, max, true, false}; }
inline constexpr ConfigRange below_one{0, 1, false, true};
inline constexpr ConfigRange kDropoutPart{-1, 1, false, true};
inline constexpr ConfigRange any{};

}  // namespace config_ranges
}  // namespace zs
