#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/device/trace.h"

namespace zs::bench {

/// How long an op of the trace takes, in milliseconds. `index` counts the ops of its stream.
using Price = std::function<double(const TraceEntry& op, std::size_t index)>;

/// Tells the ops of a step that have one name on one stream apart, by their order: a unit is gathered several times,
/// not always from the same ranks. One for each pass over a step.
class NumberedOps {
 public:
  /// Of this stream, op name, and how many of those came before.
  using Key = std::tuple<StreamRole, std::string, int>;
  Key next(StreamRole stream, const std::string& name) { return {stream, name, count_[{stream, name}]++}; }

 private:
  std::map<std::pair<StreamRole, std::string>, int> count_;
};

/// Whether the op needs the one link that all such ops share: those under way at the same time have even parts of it.
using NeedsLink = std::function<bool(const TraceEntry& op)>;

/// A piece of the critical path: ops of one stream and phase, one after the other.
struct PathPiece {
  StreamRole stream;
  std::string phase, first_op, last_op;  ///< OpInfo::name
  double ms = 0;                         ///< from the first one's start to the last one's end
};

/// One step run by its plan's own graph: each stream does its ops in order, each op as long as it is priced, longer
/// where it shares the link, and waits for the records that it waits for.
struct Simulation {
  /// Along the compute stream, so without what comes behind a step's last op of it.
  struct Phase {
    double ms = 0;          ///< from the end of the phase before to the end of its own last op
    double compute_ms = 0;  ///< what its ops are priced at
    double exposed_ms() const {
      return std::max(ms - compute_ms, 0.0);
    }  // sums of the same prices differ in their last bits
  };
  double step_ms = 0;
  std::array<double, kStreamRoles> busy_ms{};  ///< what each stream's ops are priced at
  std::vector<PathPiece> critical_path;        ///< in order of time; sums up to step_ms
  std::map<std::string, Phase> phases;         ///< by name

  /// What compute waits for.
  double exposed_ms() const { return step_ms - busy_ms[static_cast<std::size_t>(StreamRole::compute)]; }
};

/// Events that were recorded before the trace began order nothing. Host synchronisation is not part of a step and is
/// ignored. The trace must be able to end: a wait's record stands before it.
Simulation simulate(const std::vector<TraceEntry>& entries, const Price& price, const NeedsLink& needs_link);

}  // namespace zs::bench
