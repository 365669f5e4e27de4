#pragma once

#include <string>
#include <vector>

#include "model/train/profile/step_times.h"

namespace zs {

/// Steps in the Trace Event Format, which Perfetto and chrome://tracing show: the host and each stream as a thread,
/// every op, wait and gap a slice, and an arrow from each event's record to each wait for it.
/// https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
std::string trace_events(const std::vector<StepTimes>& steps, int rank);

/// True of a file that begins and ends as that of the first rank does.
bool is_trace(const std::string& path);

}  // namespace zs
