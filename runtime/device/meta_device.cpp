#include "runtime/device/meta_device.h"

namespace zs {
namespace {

class MetaEventRecord final : public EventRecord {
 public:
  explicit MetaEventRecord(std::int64_t id) : id_(id) {}
  std::int64_t id() const { return id_; }

 private:
  void retire() noexcept override { delete this; }
  std::int64_t id_;
};

}  // namespace

void MetaStream::enqueue(OpInfo info, Work) {
  if (trace_.is_recording()) trace_.add({TraceEntry::Kind::op, role_, std::move(info), -1});
}

void MetaStream::synchronize() {
  if (trace_.is_recording()) trace_.add({TraceEntry::Kind::sync, role_, {}, -1});
}

EventRecord* MetaStream::do_record() {
  const std::int64_t id = next_record_id_++;
  if (trace_.is_recording()) trace_.add({TraceEntry::Kind::record, role_, {}, id});
  return new MetaEventRecord(id);
}

void MetaStream::do_wait(EventRecord& record) {
  if (trace_.is_recording()) trace_.add({TraceEntry::Kind::wait, role_, {}, dynamic_cast<MetaEventRecord&>(record).id()});
}

MetaDevice::MetaDevice(const DeviceOptions& options)
    : Device(options),
      streams_{MetaStream(StreamRole::compute, trace_, next_record_id_), MetaStream(StreamRole::unshard, trace_, next_record_id_),
               MetaStream(StreamRole::reduce, trace_, next_record_id_), MetaStream(StreamRole::offload, trace_, next_record_id_)},
      pool_(*allocator_, counter_, options.perturb_seed != 0) {}

}  // namespace zs
