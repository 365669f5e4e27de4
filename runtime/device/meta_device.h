#pragma once

#include <array>

#include "runtime/device/device.h"

namespace zs {

/// Records the trace and drops the work at once: everything enqueued is done on return. Host thread only.
class MetaStream final : public Stream {
 public:
  MetaStream(StreamRole role, Trace& trace, std::int64_t& next_record_id) : role_(role), trace_(trace), next_record_id_(next_record_id) {}
  StreamRole role() const override { return role_; }
  void enqueue(OpInfo info, Work work) override;
  void synchronize() override;

 protected:
  EventRecord* do_record() override;
  void do_wait(EventRecord& record) override;

 private:
  const StreamRole role_;
  Trace& trace_;
  std::int64_t& next_record_id_;
};

/// Shapes and lifetimes without memory or arithmetic. Host thread only.
class MetaDevice final : public Device {
 public:
  explicit MetaDevice(const DeviceOptions& options);
  ~MetaDevice() override { trace_.stop(); }

  DeviceKind kind() const override { return DeviceKind::meta; }
  Stream& stream(StreamRole role) override { return streams_[static_cast<int>(role)]; }
  Allocator& allocator() override { return *allocator_; }
  Pool& pool() override { return pool_; }
  Profile& profile() override { return profile_; }

 private:
  std::int64_t next_record_id_ = 0;
  std::array<MetaStream, kStreamRoles> streams_;
  std::unique_ptr<Allocator> allocator_ = make_meta_allocator();
  Pool pool_;
  Profile profile_;  // stays empty
};

}  // namespace zs
