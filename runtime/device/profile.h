#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device/stream.h"

namespace zs {

/// Time in which a stream ran one op, or waited for another stream's event, in nanoseconds of
/// std::chrono::steady_clock.
struct OpTime {
  std::string name;      ///< OpInfo::name; of a wait, the name of the stream waited for
  bool is_wait = false;  ///< for an event; waiting for the host is not recorded, it is what lies between two entries
  std::int64_t start_ns = 0, end_ns = 0;
  std::int64_t record_id = -1;                  ///< for a wait: EventRecord::id
  const char* phase = "";                       ///< for an op: Trace::phase when it was enqueued
  std::vector<Buffer> reads = {}, writes = {};  ///< for an op: buffers of its OpInfo

  double ms() const { return static_cast<double>(end_ns - start_ns) * 1e-6; }
};

/// Time at which a stream passed a record of an event.
struct RecordTime {
  std::int64_t id = -1;  ///< EventRecord::id
  std::int64_t ns = 0;
};

/// The times of one device's work. Off until `start`; from then to `stop` whatever is enqueued is timed when it runs,
/// also if that is after `stop`. Work that is skipped because of an earlier exception leaves no entry. The meta device
/// runs nothing and times nothing. A GPU's times are its own, and are in the lists once the stream was synchronised.
///
/// Owned by a device. The host starts and stops it at any time. Each stream's thread writes a list of its own, so the
/// host reads and clears the lists only after it has synchronised the device, and before it enqueues more: they need no
/// lock, and none may be added (see CpuStream).
class Profile {
 public:
  void start() { recording_ = true; }
  void stop() { recording_ = false; }
  bool is_recording() const { return recording_; }
  /// Times of ops and waits, in the order in which the stream ran them.
  const std::vector<OpTime>& times(StreamRole role) const { return times_[static_cast<std::size_t>(role)]; }
  /// Records of events, in the order in which the stream passed them.
  const std::vector<RecordTime>& records(StreamRole role) const { return records_[static_cast<std::size_t>(role)]; }
  void clear();
  /// Called by the stream's thread.
  void add(StreamRole role, OpTime time);
  void add(StreamRole role, RecordTime record);

 private:
  bool recording_ = false;
  std::array<std::vector<OpTime>, kStreamRoles> times_;
  std::array<std::vector<RecordTime>, kStreamRoles> records_;
};

}  // namespace zs
