#include "bench/overlap_graph.h"

#include <algorithm>
#include <map>

namespace zs::bench {
namespace {

constexpr std::ptrdiff_t kNone = -1;

/// An op in time. `before` is the op whose end it waited for: the critical path is walked along it.
struct Node {
  const TraceEntry* entry;
  double end_ms, duration_ms;
  std::ptrdiff_t before;
};

/// The point in time that a stream has come to, and the op that ended there.
struct Front {
  double ms = 0;
  std::ptrdiff_t node = kNone;
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
    path.back().ms += node.duration_ms;
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace

Simulation simulate(const std::vector<TraceEntry>& entries, const Price& price) {
  Simulation result;
  std::vector<Node> nodes;
  std::array<Front, kStreamRoles> fronts;
  std::array<std::size_t, kStreamRoles> ops{};
  std::map<std::int64_t, Front> records;
  for (const TraceEntry& entry : entries) {
    const auto stream = static_cast<std::size_t>(entry.stream);
    Front& front = fronts[stream];
    if (entry.kind == TraceEntry::Kind::record) {
      records[entry.record_id] = front;
    } else if (entry.kind == TraceEntry::Kind::wait) {
      const auto awaited = records.find(entry.record_id);
      if (awaited != records.end() && awaited->second.ms > front.ms) front = awaited->second;
    } else if (entry.kind == TraceEntry::Kind::op) {
      const double ms = price(entry, ops[stream]++);
      nodes.push_back({&entry, front.ms + ms, ms, front.node});
      front = {front.ms + ms, std::ssize(nodes) - 1};
      result.busy_ms[stream] += ms;
    }
  }
  const Front last = *std::max_element(fronts.begin(), fronts.end(), [](const Front& a, const Front& b) { return a.ms < b.ms; });
  result.step_ms = last.ms;
  result.critical_path = path_to(last.node, nodes);
  return result;
}

}  // namespace zs::bench
