#include "runtime/device/short_time_slice.h"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

namespace zs {
namespace {

/// The first version of Linux's sched_attr, whose header does not go with <sched.h>.
struct Attributes {
  std::uint32_t size = sizeof(Attributes), policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime = 0, deadline = 0, period = 0;
};
static_assert(sizeof(Attributes) == 48);

std::optional<Attributes> attributes_of_this_thread() {
  Attributes attributes;
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) == 0) return attributes;
  errno = 0;  // an old or a closed system: it does not say
  return std::nullopt;
}

}  // namespace

void take_short_time_slices() {
  constexpr unsigned long kTimerSlackNs = 1000;
  if (prctl(PR_SET_TIMERSLACK, kTimerSlackNs) != 0) errno = 0;  // then sleeps are longer
  std::optional<Attributes> attributes = attributes_of_this_thread();
  if (!attributes || attributes->policy != SCHED_OTHER) return;  // somebody has chosen another policy
  attributes->runtime = kShortSliceNs;
  if (syscall(SYS_sched_setattr, 0, &*attributes, 0) != 0) errno = 0;  // then it waits its turn
}

std::uint64_t slice_of_this_thread() {
  const std::optional<Attributes> attributes = attributes_of_this_thread();
  return attributes ? attributes->runtime : 0;
}

}  // namespace zs
