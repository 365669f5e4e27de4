#include "runtime/device/stream.h"

namespace zs {

void Stream::flush_waits() {
  if (waits_.empty()) return;
  last_record_ = {};
  for (const Event& event : waits_) {
    // Of those that imply each other the last one stays; they are of one record.
    const auto implies_it = [&](const Event& other) {
      return &other != &event && other.implies(event) && (&other > &event || !event.implies(other));
    };
    if (std::none_of(waits_.begin(), waits_.end(), implies_it)) do_wait(*event.latest_);
  }
  for (const Event& event : waits_) {
    for (std::size_t i = 0; i < clock_.size(); ++i) clock_[i] = std::max(clock_[i], event.clock_[i]);
  }
  waits_.clear();
}

void Stream::enqueue(OpInfo info, Work work) {
  const OpMemory memory = reserve(info);
  flush_waits();
  last_record_ = {};
  for (const Buffer* const block : {&memory.scratch, &memory.pinned}) {
    if (!block->empty()) info.writes.push_back(*block);
  }
  do_enqueue(std::move(info), std::move(work), memory);
}

void Stream::record(Event& event) {
  flush_waits();
  if (!last_record_.is_recorded()) {
    ++clock_[static_cast<std::size_t>(role())];
    last_record_.adopt(do_record());
    last_record_.source_ = role();
    last_record_.clock_ = clock_;
  }
  event = last_record_;
}

void Stream::wait(const Event& event) {
  const auto source = static_cast<std::size_t>(event.source_);
  if (!event.latest_ || event.clock_[source] <= clock_[source]) return;
  waits_.push_back(event);
}

void Stream::synchronize() {
  flush_waits();
  do_synchronize();
}

}  // namespace zs
