#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/device/stream.h"

namespace zs {

class FiniteCheck;

/// One entry in the host's program order. `stream` is the role's number. An `op` carries its declared accesses. A
/// `record` and the `wait`s bound to it share `record_id` (unique within the trace). `sync` is the host waiting for a
/// stream. `acquire` and `release` are a pool handing out a block for a stream and taking it back from its last user,
/// as of the record `record_id`: `op` then has the label as its name and the block, in bytes, as what it writes.
struct TraceEntry {
  enum class Kind : std::uint8_t { op, record, wait, sync, acquire, release };
  Kind kind;
  StreamRole stream;
  OpInfo op;                    // kind == op, acquire or release
  std::int64_t record_id = -1;  // kind == record, wait or release
  std::string owner = {};       // kind == acquire: MemoryCounter's
  std::int64_t live_bytes = 0;  // kind == acquire or release: counted after it
  std::string phase = {};       // phase of the step: Trace::set_phase
};

/// The recorded work of one device. Host thread only. Recording is off until `start`.
class Trace {
 public:
  void start() { recording_ = true; }
  void stop() { recording_ = false; }
  void clear();
  bool is_recording() const { return recording_; }
  void add(TraceEntry entry);
  /// Names what the program does from now on ("forward", "backward", "optimizer"), for whoever reads the trace or the
  /// profile.
  void set_phase(const char* phase) { phase_ = phase; }
  const char* phase() const { return phase_; }
  /// Has a CPU device look through what its ops write from now on; null: no more.
  void check_finite(FiniteCheck* check) { finite_check_ = check; }
  FiniteCheck* finite_check() const { return finite_check_; }
  const std::vector<TraceEntry>& entries() const { return entries_; }
  std::vector<TraceEntry>& entries() { return entries_; }

 private:
  bool recording_ = false;
  const char* phase_ = "";
  FiniteCheck* finite_check_ = nullptr;
  std::vector<TraceEntry> entries_;
};

/// Two accesses to overlapping bytes, at least one a write, that no chain of events orders; or an access to a block
/// that its pool has taken back. Indices into the trace.
struct OrderViolation {
  std::size_t first, second;
  std::string message;  ///< names both ops, both streams and the conflicting range with the block that it is of
};

/// Vector clocks over the streams and the host: an op happens after what was enqueued before it on its stream, after
/// every record that its stream has waited for, and after every stream the host synchronised with before enqueuing it.
/// A wait on a record that started before the trace did orders nothing inside it. A block of a pool belongs to its user
/// up to the point as of which it is released, read or not: that point counts as a write. Returns every violating pair
/// (each pair of entries once).
std::vector<OrderViolation> verify_order(const std::vector<TraceEntry>& entries);

}  // namespace zs
