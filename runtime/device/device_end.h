#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

namespace zs {

/// Ends the streams of a device that holds all that they may touch in `state`. What does not end in time may still
/// write to that memory: then it is never given back, and `state` is empty.
template <class State>
void end_streams(std::unique_ptr<State>& state, double sync_timeout_s) {
  // Seconds for when somebody is known to hang: wait only for those that a poisoned group lets go.
  constexpr double kStopAfterTimeoutS = 5;
  state->drop();
  const double limit_s = state->group.timed_out ? std::min(sync_timeout_s, kStopAfterTimeoutS) : sync_timeout_s;
  bool all_ended = true;
  for (const auto& stream : state->streams) all_ended = stream->stop(limit_s) && all_ended;
  if (all_ended) return;
  [[maybe_unused]] const State* const left_behind = state.release();
#if defined(__SANITIZE_ADDRESS__)
  __lsan_ignore_object(left_behind);
#endif
}

/// The entries that are done in all of them.
template <class Streams>
std::uint64_t completed_of(const Streams& streams) {
  std::uint64_t sum = 0;
  for (const auto& stream : streams) sum += stream->completed();
  return sum;
}

}  // namespace zs
