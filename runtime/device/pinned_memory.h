#pragma once

#include <memory>
#include <string>

#include "runtime/device/allocator.h"
#include "runtime/device/scratch.h"

namespace zs {

/// Memory of the host that a GPU copies from and to by itself, beside other work: page-locked. Ordinary memory on the
/// CPU device, so that the same program runs there. Taken from the system at once (DeviceOptions::pinned_bytes), cut
/// into blocks and counted like a device's own; what does not fit is another allocation, which is counted too.
///
/// A block is a buffer of device cpu. KernelTable::copy moves bytes between it and the device's memory, on any stream
/// and in its order; what the device has put there, the host may read when it has waited for that stream. The order in
/// which blocks are handed on is that of streams: before the host itself writes to a new block it waits for the stream
/// that it acquired the block for. Owned by a device; one host thread uses it.
class PinnedMemory {
 public:
  /// Labels of what the device itself has there.
  static constexpr const char *kUploads = "uploads", *kStaging = "staging";

  /// `bytes`: at once; Pool::kGrowingSlab on the meta device. `poison`: see Pool.
  PinnedMemory(std::unique_ptr<Allocator> allocator, std::int64_t bytes, bool poison = false)
      : allocator_(std::move(allocator)), pool_(*allocator_, counter_, poison, bytes) {}
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  /// See Pool::acquire.
  Memory acquire(std::int64_t bytes, Stream& stream, std::string label) {
    return pool_.acquire(bytes, stream, std::move(label));
  }
  /// Staging memory that operations of the streams declare (OpInfo::pinned_bytes).
  Scratch& staging() { return staging_; }
  /// Live bytes by label, the peak, what was taken from the system and how often.
  const MemoryCounter& counter() const { return counter_; }

 private:
  std::unique_ptr<Allocator> allocator_;
  MemoryCounter counter_;  // notes nothing in the trace: its lists are of the device's memory
  Pool pool_;
  Scratch staging_{pool_, kStaging};
};

}  // namespace zs
