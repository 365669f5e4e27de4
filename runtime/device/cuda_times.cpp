#include "runtime/device/cuda_times.h"

#include <chrono>
#include <utility>

namespace zs {
namespace {

constexpr double kFarMs = 2048;  // a float of so many milliseconds tells microseconds apart
constexpr double kNsOfAMs = 1000000;

}  // namespace

CudaTimedEvents::~CudaTimedEvents() {
  for (CUevent_st* event : made_) log_cuda(context_.driver(), context_.driver().event_destroy(event), "cuEventDestroy");
}

CUevent_st* CudaTimedEvents::record(CUstream_st* stream) {
  if (unused_.empty()) {
    CUevent_st* event = nullptr;
    context_.check(context_.driver().event_create(&event, CudaDriver::kWithTime), "cuEventCreate");
    made_.push_back(event);
    unused_.push_back(event);
  }
  context_.check(context_.driver().event_record(unused_.back(), stream), "cuEventRecord");
  CUevent_st* const event = unused_.back();
  unused_.pop_back();
  return event;
}

void CudaClock::start(CUstream_st* stream) {
  if (origin_ != nullptr) return;
  origin_ = events_.record(stream);
  origin_ns_ =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double CudaClock::ms_since_origin(CUevent_st* event) {
  float ms = 0;
  const CudaContext& context = events_.context();
  context.check(context.driver().event_elapsed(&ms, origin_, event), "cuEventElapsedTime");
  return static_cast<double>(ms);
}

std::int64_t CudaClock::ns_of(CUevent_st* event) {
  return origin_ns_ + static_cast<std::int64_t>(ms_since_origin(event) * kNsOfAMs);
}

void CudaClock::closed(std::int64_t entries, CUevent_st*& last) {
  open_ -= entries;
  if (const double ms = last == nullptr ? 0 : ms_since_origin(last); ms > latest_ms_) {
    latest_ms_ = ms;
    std::swap(latest_, last);
  }
  if (open_ > 0 || latest_ms_ <= kFarMs) return;
  origin_ns_ = ns_of(latest_);
  events_.reclaim(origin_);
  origin_ = std::exchange(latest_, nullptr);
  latest_ms_ = 0;
}

CudaTimes::Entry& CudaTimes::begin(CUstream_st* stream, OpTime time) {
  clock_.start(stream);
  Entry& entry = entries_.emplace_back(Entry{std::move(time), nullptr, nullptr});
  clock_.opened();
  entry.start = clock_.events().record(stream);
  return entry;
}

void CudaTimes::collect() {
  for (Entry& entry : entries_) {
    if (entry.is_record) profile_.add(role_, RecordTime{entry.time.record_id, clock_.ns_of(entry.start)});
    if (entry.end == nullptr) continue;
    entry.time.start_ns = clock_.ns_of(entry.start);
    entry.time.end_ns = clock_.ns_of(entry.end);
    profile_.add(role_, std::move(entry.time));
  }
  if (entries_.empty()) return reclaim(nullptr);
  Entry& last = entries_.back();
  reclaim(std::exchange(last.is_record ? last.start : last.end, nullptr));
}

void CudaTimes::forget() { reclaim(nullptr); }

void CudaTimes::reclaim(CUevent_st* last) {
  for (const Entry& entry : entries_) {
    clock_.events().reclaim(entry.start);
    clock_.events().reclaim(entry.end);
  }
  const auto entries = std::ssize(entries_);
  entries_.clear();
  clock_.closed(entries, last);
  clock_.events().reclaim(last);
}

}  // namespace zs
