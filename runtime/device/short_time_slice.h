#pragma once

#include <cstdint>

namespace zs {

/// Nanoseconds that a stream's thread wants of a processor at a time, the least that Linux grants.
inline constexpr std::uint64_t kShortSliceNs = 100'000;

/// Makes the calling thread, and threads that it starts from here on, take short turns with others, as far as the
/// system lets it choose; what it does not is left as it is. Every sleep of the calling one ends when it should: by
/// default Linux makes each 50 us longer. Turns of the processor are short, so that with Linux 6.12 and later who wakes
/// need not wait until one has ended, about 3 ms: another thread of ours that has received from a peer, or the kernel's
/// own (ksoftirqd), without which nobody receives. Shares of the processor stay the same.
void take_short_time_slices();

/// The calling thread's slice, in nanoseconds; 0 where the system does not say.
std::uint64_t slice_of_this_thread();

}  // namespace zs
