#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/device/cuda_context.h"
#include "runtime/device/profile.h"

namespace zs {

/// Events of the driver that know when the GPU passed them, used again and again. Host thread only; dies before the
/// context.
class CudaTimedEvents {
 public:
  explicit CudaTimedEvents(const CudaContext& context) : context_(context) {}
  ~CudaTimedEvents();
  CudaTimedEvents(const CudaTimedEvents&) = delete;
  CudaTimedEvents& operator=(const CudaTimedEvents&) = delete;

  CUevent_st* record(CUstream_st* stream);
  void reclaim(CUevent_st* event) {
    if (event != nullptr) unused_.push_back(event);
  }
  const CudaContext& context() const { return context_; }

 private:
  const CudaContext& context_;
  std::vector<CUevent_st*> made_, unused_;
};

/// The GPU's time as the host's: what all streams of a device measure from. An event whose passing is taken for the
/// moment in which the host enqueued it, which it is where the GPU had nothing else to do. The driver says how far
/// events are apart as milliseconds in a float, so the origin moves on before that gets coarse.
class CudaClock {
 public:
  explicit CudaClock(const CudaContext& context) : events_(context) {}

  CudaTimedEvents& events() { return events_; }
  /// Starts the clock, before the first event of an entry.
  void start(CUstream_st* stream);
  /// Time of an event by the host's std::chrono::steady_clock, in nanoseconds; the GPU has passed the event.
  std::int64_t ns_of(CUevent_st* event);
  /// One more entry whose events nobody has asked for yet.
  void opened() { ++open_; }
  /// Counts entries as closed. `last`, unless there is none, is the last event of theirs, which the GPU has passed; it
  /// is another one, or null, afterwards, since the origin may move on to it once no stream has open entries.
  void closed(std::int64_t entries, CUevent_st*& last);

 private:
  double ms_since_origin(CUevent_st* event);

  CudaTimedEvents events_;
  CUevent_st *origin_ = nullptr, *latest_ = nullptr;
  double latest_ms_ = 0;  // from the origin to the latest event of entries that are closed
  std::int64_t origin_ns_ = 0, open_ = 0;
};

/// Times at which one stream of a GPU ran its ops, and how long it stood at others' events: an event before and one
/// after each. What the GPU does not do for lack of work lies between two entries. Host thread only.
class CudaTimes {
 public:
  CudaTimes(Profile& profile, CudaClock& clock, StreamRole role) : profile_(profile), clock_(clock), role_(role) {}

  /// Runs `body`, which enqueues the entry on `stream`; one that throws leaves no times. `describe`: what it is, an
  /// OpTime without times.
  template <class Describe, class Body>
  void time(CUstream_st* stream, const Describe& describe, const Body& body) {
    if (!profile_.is_recording()) return body();
    Entry& entry = begin(stream, describe());
    body();
    entry.end = clock_.events().record(stream);
  }
  /// The stream has recorded an event, EventRecord::id.
  void recorded(CUstream_st* stream, std::int64_t id) {
    if (profile_.is_recording()) begin(stream, {.name = {}, .record_id = id}).is_record = true;
  }
  /// The stream has ended.
  void collect();
  /// The stream has failed, and its events tell nothing.
  void forget();

 private:
  struct Entry {
    OpTime time;
    CUevent_st *start, *end;  // no end: its work threw, or it is a record
    bool is_record = false;
  };
  /// `last`: the last event that the GPU is known to have passed; null: none.
  void reclaim(CUevent_st* last);
  Entry& begin(CUstream_st* stream, OpTime time);

  Profile& profile_;
  CudaClock& clock_;
  const StreamRole role_;
  std::vector<Entry> entries_;
};

}  // namespace zs
