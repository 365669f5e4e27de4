#include "comm/nccl/launch_order.h"

#include <cstring>
#include <vector>

namespace zs {
namespace {

/// Error of the same kind, which names the operation whose order was compared.
template <class Kind>
Kind of_operation(const OpTag& tag, const Kind& error) {
  return Kind(error.code(), fmt::format("{}: {}", tag.text(), error.what_happened()), error.where(),
              error.what_to_do());
}

}  // namespace

LaunchOrderCheck::LaunchOrderCheck(std::unique_ptr<Communicator> hosts,
                                   std::function<void(const std::exception_ptr&)> on_failure)
    : hosts_(std::move(hosts)),
      on_failure_(std::move(on_failure)),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

// The thread ends with the comparison that it is in, which has a deadline.
LaunchOrderCheck::~LaunchOrderCheck() = default;

void LaunchOrderCheck::add(const OpTag& tag) {
  const std::lock_guard lock(mutex_);
  tags_.push_back(tag);
  changed_.notify_all();
}

void LaunchOrderCheck::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return tags_.empty() || has_failed_; });
}

void LaunchOrderCheck::run(const std::stop_token& stop) {
  for (;;) {
    OpTag tag;
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [&] { return !tags_.empty(); })) return;
      tag = tags_.front();
    }
    std::exception_ptr error;
    try {
      compare(tag);
    } catch (...) {
      error = std::current_exception();
    }
    if (error) on_failure_(error);
    const std::lock_guard lock(mutex_);
    tags_.pop_front();
    has_failed_ = error != nullptr;
    changed_.notify_all();
    if (has_failed_) return;
  }
}

void LaunchOrderCheck::compare(const OpTag& tag) {
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(OpTag));
  std::vector<OpTag> all(static_cast<std::size_t>(hosts_->size()));
  all[static_cast<std::size_t>(hosts_->rank())] = tag;
  const Buffer said{all.data(), hosts_->size() * kBytes, DType::u8, DeviceKind::cpu};
  try {
    hosts_->all_gather(stream_, "order", said.slice(hosts_->rank() * kBytes, kBytes), said);
  } catch (const GroupEnded& error) {
    throw of_operation(tag, error);
  } catch (const Error& error) {
    throw of_operation(tag, error);
  }
  for (int rank = 1; rank < hosts_->size(); ++rank) {
    const OpTag& theirs = all[static_cast<std::size_t>(rank)];
    if (theirs.hash != all[0].hash) throw ranks_disagree(0, all[0], rank, theirs);
  }
}

}  // namespace zs
