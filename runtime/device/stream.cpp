#include "runtime/device/stream.h"

#include "runtime/base/usage_error.h"

namespace zs {

const CudaContext& ExecContext::gpu() const {
  ZS_CHECK(gpu_ != nullptr, "work for a GPU on a stream of another device");
  return *gpu_;
}

UploadRing& ExecContext::uploads() const {
  ZS_CHECK(uploads_ != nullptr, "an upload on a stream that has no way to a GPU");
  return *uploads_;
}

void* ExecContext::scratch(std::int64_t bytes) {
  if (!has_memory_ && bytes > scratch_.elems) scratch_ = grow(own_scratch_, bytes);
  ZS_CHECK(bytes <= scratch_.elems, "{} bytes of scratch are used, {} were declared", bytes, scratch_.elems);
  return scratch_.data;
}

void* ExecContext::workspace(std::int64_t bytes) {
  if (!has_memory_ && bytes > workspace_.elems) workspace_ = grow(own_workspace_, bytes);
  ZS_CHECK(bytes <= workspace_.elems, "{} bytes of workspace, there are {}", bytes, workspace_.elems);
  return workspace_.data;
}

void* ExecContext::pinned(std::int64_t bytes) const {
  ZS_CHECK(bytes <= pinned_.elems, "{} bytes of page-locked memory are used, {} were declared", bytes, pinned_.elems);
  return pinned_.data;
}

Buffer ExecContext::grow(std::vector<std::byte>& own, std::int64_t bytes) const {
  ZS_CHECK(gpu_ == nullptr, "a kernel of a GPU wants {} bytes of working memory, and was given none: see set_memory",
           bytes);
  own.resize(static_cast<std::size_t>(bytes) + 64);
  void* address = own.data();
  std::size_t room = own.size();
  return {std::align(64, static_cast<std::size_t>(bytes), address, room), bytes, DType::u8, DeviceKind::cpu};
}

void Stream::flush_waits() {
  if (waits_.empty()) return;
  last_record_ = {};
  for (const Event& event : waits_) {
    // Events that imply each other are of one record; the last one stays.
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
  if (!work) [[unlikely]]
    throw UsageError(fmt::format("launch \"{}\" of an empty function", info.name), "give it work");
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
