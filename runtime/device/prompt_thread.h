#pragma once

#include <cstdint>

namespace zs {

/// Nanoseconds that a thread which waits for peers wants of a processor at a time.
inline constexpr std::uint64_t kPromptSliceNs = 100'000;

/// How the calling thread is woken, as far as the system lets it choose; what it does not is left as it is. Every sleep ends when it
/// should: by default Linux makes each 50 us longer. `is_short`: it works for less than 0.1 ms at a time, so that Linux 6.12 and later let
/// it go before threads that compute, which else keep a processor for about 3 ms; its share of the processor stays the same.
void wake_promptly(bool is_short);

/// The calling thread's slice, in nanoseconds; 0 where the system does not say.
std::uint64_t slice_of_this_thread();

}  // namespace zs
