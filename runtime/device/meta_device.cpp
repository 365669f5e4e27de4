#include "runtime/device/meta_device.h"

namespace zs {
namespace {

constexpr int kPinnedRange = 2;  // range of addresses; the device's own allocator has range 0, what communicates 1

class MetaEventRecord final : public EventRecord {
 public:
  explicit MetaEventRecord(std::int64_t id) : id_(id) {}
  std::int64_t id() const override { return id_; }

 private:
  void retire() noexcept override { delete this; }
  std::int64_t id_;
};

}  // namespace

OpMemory MetaStream::reserve(const OpInfo& info) {
  return {
      device_.scratch().reserve(*this, scratch_block_bytes(device_.options().stands_for, role_, info.scratch_bytes)),
      device_.pinned_memory().staging().reserve(*this, info.pinned_bytes)};
}

void MetaStream::do_enqueue(OpInfo info, Work, const OpMemory&) {
  if (device_.trace().is_recording()) device_.trace().add({TraceEntry::Kind::op, role_, std::move(info), -1});
}

void MetaStream::do_synchronize() { note(TraceEntry::Kind::sync, -1); }

EventRecord* MetaStream::do_record() {
  const std::int64_t id = device_.next_record_id();
  note(TraceEntry::Kind::record, id);
  return new MetaEventRecord(id);
}

void MetaStream::do_wait(EventRecord& record) { note(TraceEntry::Kind::wait, record.id()); }

void MetaStream::note(TraceEntry::Kind kind, std::int64_t record_id) {
  if (device_.trace().is_recording()) device_.trace().add({kind, role_, {}, record_id});
}

MetaDevice::MetaDevice(const DeviceOptions& options)
    : Device(options),
      streams_{MetaStream(StreamRole::compute, *this), MetaStream(StreamRole::unshard, *this),
               MetaStream(StreamRole::reduce, *this), MetaStream(StreamRole::finish, *this),
               MetaStream(StreamRole::offload, *this)},
      pool_(*allocator_, counter_, options.perturb_seed != 0, options.slab_bytes),
      pinned_(make_meta_allocator(kPinnedRange), options.pinned_bytes) {
  if (options.stands_for == DeviceKind::cuda)
    uploads_ = pinned_.acquire(options.upload_bytes, streams_.front(), PinnedMemory::kUploads);
}

MetaDevice::~MetaDevice() {
  trace_.stop();
  scratch_.drop();
  pinned_.staging().drop();
  uploads_.reset();
}

}  // namespace zs
