#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/device/trace.h"

namespace zs {

/// One buffer of a step. Moments are indices into the step's trace; the buffer is live from `acquired`, included, to
/// `released`, excluded: 0 when it is older than the step, the number of entries when it outlives it.
struct PlannedBuffer {
  std::string owner;  ///< the unit that it was acquired for; empty: none
  std::string label;  ///< "activation", "full_grad" ...
  std::int64_t bytes = 0;
  std::int64_t acquired = 0, released = 0;
  std::int64_t first_use = -1, last_use = -1;  ///< ops that declare it; -1: none in this step

  bool is_live_at(std::int64_t moment) const { return acquired <= moment && moment < released; }
};

/// Every buffer that is live at some moment of the entries [begin, end) of `trace`, in the order of acquisition. The
/// trace goes back to where nothing was live; moments count from `begin`.
std::vector<PlannedBuffer> buffers_of(std::span<const TraceEntry> trace, std::size_t begin, std::size_t end);

/// The moment at which most bytes are live, the first of them.
std::int64_t peak_moment(std::span<const PlannedBuffer> buffers);
std::int64_t live_bytes_at(std::span<const PlannedBuffer> buffers, std::int64_t moment);

/// Buffers of one kind, owner, size and first op in one row, with how many are live at the peak; then their sum, the
/// peak. `step` is the trace that the moments count in.
std::string describe_grouped(std::span<const PlannedBuffer> buffers, std::span<const TraceEntry> step);
/// One row a buffer: owner, kind, bytes, and the ops (numbered from 1) that use it first and last.
std::string describe_all(std::span<const PlannedBuffer> buffers, std::span<const TraceEntry> step);

}  // namespace zs
