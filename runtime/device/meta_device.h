#pragma once

#include <array>

#include "runtime/device/device.h"
#include "runtime/device/scratch.h"

namespace zs {

class MetaDevice;

/// Records the trace and drops the work at once: everything enqueued is done on return. Host thread only.
class MetaStream final : public Stream {
 public:
  MetaStream(StreamRole role, MetaDevice& device) : role_(role), device_(device) {}
  StreamRole role() const override { return role_; }

 protected:
  OpMemory reserve(const OpInfo& info) override;
  void do_enqueue(OpInfo info, Work work, const OpMemory& memory) override;
  void do_synchronize() override;
  EventRecord* do_record() override;
  void do_wait(EventRecord& record) override;

 private:
  void note(TraceEntry::Kind kind, std::int64_t record_id);

  const StreamRole role_;
  MetaDevice& device_;
};

/// Shapes and lifetimes without memory or arithmetic. Host thread only.
class MetaDevice final : public Device {
 public:
  explicit MetaDevice(const DeviceOptions& options);
  ~MetaDevice() override;

  DeviceKind kind() const override { return DeviceKind::meta; }
  Stream& stream(StreamRole role) override { return streams_[static_cast<int>(role)]; }
  Allocator& allocator() override { return *allocator_; }
  Pool& pool() override { return pool_; }
  Profile& profile() override { return profile_; }
  Scratch& scratch() override { return scratch_; }
  PinnedMemory& pinned_memory() override { return pinned_; }
  void keep(std::vector<std::shared_ptr<void>>) override {}  // nothing is left to touch it
  std::int64_t next_record_id() { return next_record_id_++; }

 private:
  std::int64_t next_record_id_ = 0;
  std::array<MetaStream, kStreamRoles> streams_;
  std::unique_ptr<Allocator> allocator_ = make_meta_allocator();
  Pool pool_;
  Profile profile_;  // stays empty
  Scratch scratch_{pool_};
  PinnedMemory pinned_;
  Memory uploads_;  // memory for uploads of the device that it stands for
};

}  // namespace zs
