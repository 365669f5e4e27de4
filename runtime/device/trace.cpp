#include "runtime/device/trace.h"

#include <utility>

#include "runtime/device/profile.h"

namespace zs {

void Trace::clear() { entries_.clear(); }

void Trace::add(TraceEntry entry) {
  entry.phase = phase_;
  entries_.push_back(std::move(entry));
}

void Profile::clear() {
  for (auto& times : times_) times.clear();
  for (auto& records : records_) records.clear();
}

void Profile::add(StreamRole role, OpTime time) { times_[static_cast<std::size_t>(role)].push_back(std::move(time)); }

void Profile::add(StreamRole role, RecordTime record) { records_[static_cast<std::size_t>(role)].push_back(record); }

}  // namespace zs
