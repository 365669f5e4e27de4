#pragma once

#include <vector>

#include "runtime/device/stream.h"

namespace zs {

/// A stream of host memory without a thread and without order to others: work runs in the call that enqueues it, and
/// throws there. For what the hosts of a communicator over GPUs tell each other. One thread uses it.
class InlineStream final : public Stream {
 public:
  StreamRole role() const override { return StreamRole::offload; }

 private:
  OpMemory reserve(const OpInfo& info) override {
    constexpr std::int64_t kAlignment = 64;
    const std::int64_t bytes = info.scratch_bytes;
    if (bytes == 0) return {};
    if (std::ssize(scratch_) < bytes + kAlignment) scratch_.resize(static_cast<std::size_t>(bytes + kAlignment));
    void* address = scratch_.data();
    std::size_t room = scratch_.size();
    address = std::align(static_cast<std::size_t>(kAlignment), static_cast<std::size_t>(bytes), address, room);
    return {.scratch = {address, bytes, DType::u8, DeviceKind::cpu}, .pinned = {}};
  }
  void do_enqueue(OpInfo, Work work, const OpMemory& memory) override {
    exec_.set_memory(memory);
    work(exec_);
  }
  void do_synchronize() override {}
  EventRecord* do_record() override { ZS_CHECK(false, "a stream without order to others was recorded"); }
  void do_wait(EventRecord&) override { ZS_CHECK(false, "a stream without order to others was told to wait"); }

  std::vector<std::byte> scratch_;
  ExecContext exec_{1, nullptr};
};

}  // namespace zs
