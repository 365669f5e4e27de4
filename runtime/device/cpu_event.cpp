#include "runtime/device/cpu_event.h"

#include "runtime/device/futex.h"

namespace zs {
namespace {

// Using a record again needs the streams' last accesses to be over: an acquire of their releases. In TSan builds that
// acquire would be an edge from streams to the host, and from there to every other stream, which hides missing events;
// the record's fields are atomic, so TSan has nothing to complain about without it.
#ifdef ZSHARD_TSAN
constexpr auto kReuseOrder = std::memory_order_relaxed;
#else
constexpr auto kReuseOrder = std::memory_order_acquire;
#endif

}  // namespace

void CpuEventRecord::start(std::int64_t id, const CpuStream& stream, std::uint64_t position) {
  state_.store(pending, std::memory_order_relaxed);
  sleepers_.store(0, std::memory_order_relaxed);
  users_.store(1, std::memory_order_relaxed);
  id_ = id;
  stream_ = &stream;
  position_ = position;
}

void CpuEventRecord::complete(std::exception_ptr error) noexcept {
  const bool has_failed = error != nullptr;
  if (has_failed) error_ = std::move(error);  // nobody has read it before, in an earlier use either
  state_.exchange(has_failed ? failed : done, std::memory_order_release);
  if (sleepers_.load(std::memory_order_relaxed) != 0) futex::wake_all(state_);
  end_use();
}

std::exception_ptr CpuEventRecord::await() noexcept {
  futex::Backoff backoff;
  while (state_.load(std::memory_order_relaxed) == pending) {
    if (!backoff.should_sleep()) continue;
    sleepers_.exchange(1, std::memory_order_relaxed);
    futex::wait(state_, pending, backoff.sleep_ns());
  }
  std::exception_ptr error = state_.load(std::memory_order_acquire) == failed ? error_ : nullptr;
  end_use();
  return error;
}

bool CpuEventRecord::is_unused() const { return users_.load(kReuseOrder) == 0; }

}  // namespace zs
