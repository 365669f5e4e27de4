#include "bench/overlap/overlap_graph.h"

#include <algorithm>
#include <map>
#include <set>

#include "runtime/base/check.h"

namespace zs::bench {
namespace {

constexpr std::ptrdiff_t kNone = -1;

/// An op in time. `before` is the op whose end it waited for: the critical path is walked along it.
struct Node {
  const TraceEntry* entry;
  double start_ms, end_ms;
  std::ptrdiff_t before;
};

/// The point in time that a stream has come to, and the op that ended there.
struct Front {
  double ms = 0;
  std::ptrdiff_t node = kNone;
};

/// A stream on its way through its entries.
struct Lane {
  std::vector<const TraceEntry*> entries = {};
  std::size_t at = 0, ops = 0;
  Front front = {};
  bool is_running = false, needs_link = false;
  double left_ms = 0;  ///< of the op that runs, were it alone
};

std::vector<PathPiece> path_to(std::ptrdiff_t last, const std::vector<Node>& nodes) {
  std::vector<PathPiece> path;  // from its end
  for (std::ptrdiff_t at = last; at != kNone; at = nodes[static_cast<std::size_t>(at)].before) {
    const Node& node = nodes[static_cast<std::size_t>(at)];
    const std::string& name = node.entry->op.name;
    if (path.empty() || path.back().stream != node.entry->stream || path.back().phase != node.entry->phase) {
      path.push_back({node.entry->stream, node.entry->phase, name, name, 0});
    }
    path.back().first_op = name;
    path.back().ms += node.end_ms - node.start_ms;
  }
  std::reverse(path.begin(), path.end());
  return path;
}

/// All streams in time, from the end of one op to the end of the next.
class Streams {
 public:
  Streams(const std::vector<TraceEntry>& entries, const Price& price, const NeedsLink& needs_link)
      : price_(price), needs_link_(needs_link) {
    for (const TraceEntry& entry : entries) {
      lanes_[static_cast<std::size_t>(entry.stream)].entries.push_back(&entry);
      if (entry.kind == TraceEntry::Kind::record) to_come_.insert(entry.record_id);
    }
  }

  Simulation run() {
    do {
      for (bool has_moved = true; has_moved;) {
        has_moved = false;
        for (Lane& lane : lanes_) has_moved |= advance(lane);
      }
    } while (end_the_next());
    Front last;
    for (const Lane& lane : lanes_) {
      ZS_CHECK(lane.at == lane.entries.size(), "a stream waits for a record that never comes");
      if (lane.front.ms > last.ms) last = lane.front;
    }
    result_.step_ms = last.ms;
    result_.critical_path = path_to(last.node, nodes_);
    return std::move(result_);
  }

 private:
  /// Past records and waits, up to an op that it starts or a record that is still to come. Whether anything was there
  /// to do.
  bool advance(Lane& lane) {
    const std::size_t before = lane.at;
    for (; lane.at < lane.entries.size() && !lane.is_running; ++lane.at) {
      const TraceEntry& entry = *lane.entries[lane.at];
      if (entry.kind == TraceEntry::Kind::record) {
        records_[entry.record_id] = lane.front;
        to_come_.erase(entry.record_id);
      } else if (entry.kind == TraceEntry::Kind::wait) {
        if (to_come_.count(entry.record_id) > 0) break;
        const auto awaited = records_.find(entry.record_id);
        if (awaited != records_.end() && awaited->second.ms > lane.front.ms) lane.front = awaited->second;
      } else if (entry.kind == TraceEntry::Kind::op) {
        start(lane, entry);
      }
    }
    return lane.at > before;
  }

  void start(Lane& lane, const TraceEntry& entry) {
    lane.is_running = true;
    lane.needs_link = needs_link_(entry);
    lane.left_ms = price_(entry, lane.ops++);
    result_.busy_ms[static_cast<std::size_t>(entry.stream)] += lane.left_ms;
    if (entry.stream == StreamRole::compute) result_.phases[entry.phase].compute_ms += lane.left_ms;
    nodes_.push_back({&entry, now_ms_, now_ms_, lane.front.node});
    lane.front.node = std::ssize(nodes_) - 1;
  }

  /// Lets time go on to the end of an op. Whether there was one.
  bool end_the_next() {
    const auto on_link = std::count_if(lanes_.begin(), lanes_.end(),
                                       [](const Lane& lane) { return lane.is_running && lane.needs_link; });
    const auto time_left = [&](const Lane& lane) {
      return lane.left_ms * static_cast<double>(lane.needs_link ? on_link : 1);
    };
    Lane* next = nullptr;
    for (Lane& lane : lanes_) {
      if (lane.is_running && (next == nullptr || time_left(lane) < time_left(*next))) next = &lane;
    }
    if (next == nullptr) return false;
    const double passed_ms = time_left(*next);
    now_ms_ += passed_ms;
    for (Lane& lane : lanes_) {
      if (lane.is_running) lane.left_ms -= passed_ms / static_cast<double>(lane.needs_link ? on_link : 1);
    }
    next->is_running = false;
    Node& ended = nodes_[static_cast<std::size_t>(next->front.node)];
    next->front.ms = ended.end_ms = now_ms_;
    if (ended.entry->stream == StreamRole::compute) {
      result_.phases[ended.entry->phase].ms += now_ms_ - computed_until_ms_;
      computed_until_ms_ = now_ms_;
    }
    return true;
  }

  const Price& price_;
  const NeedsLink& needs_link_;
  std::array<Lane, kStreamRoles> lanes_;
  std::vector<Node> nodes_;
  std::map<std::int64_t, Front> records_;
  std::set<std::int64_t> to_come_;
  double now_ms_ = 0, computed_until_ms_ = 0;
  Simulation result_;
};

}  // namespace

Simulation simulate(const std::vector<TraceEntry>& entries, const Price& price, const NeedsLink& needs_link) {
  return Streams(entries, price, needs_link).run();
}

}  // namespace zs::bench
