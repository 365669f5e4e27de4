#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <unordered_map>

#include "runtime/device/trace.h"

namespace zs {
namespace {

constexpr int kHost = kStreamRoles, kClocks = kStreamRoles + 1;

/// Vector clock: for each stream, the number of its ops that are known to be done.
using VectorClock = std::array<std::int64_t, kClocks>;

void join(VectorClock& clock, const VectorClock& other) {
  for (int i = 0; i < kClocks; ++i) clock[i] = std::max(clock[i], other[i]);
}

struct Access {
  std::int64_t time;  // the op's number on its stream, from 1
  std::size_t entry;
};

constexpr std::size_t kNone = ~std::size_t{0};

/// History of one range of addresses whose bytes have always been used alike, per stream, oldest first.
struct History {
  std::uint64_t end = 0;
  std::array<std::vector<Access>, kStreamRoles> reads, writes;
  std::size_t block = kNone;     // the entry that acquired it
  std::size_t released = kNone;  // the one that released it, unless acquired since
};

struct Range {
  std::uint64_t begin, end;
};

/// Checks each op against the history of every byte range it touches. Ranges are split where accesses begin and end, so
/// an access costs its number of pieces; the newest access of a stream that is in order vouches for all older ones.
class Verifier {
 public:
  explicit Verifier(const std::vector<TraceEntry>& entries) : entries_(entries) {}

  std::vector<OrderViolation> run() {
    for (std::size_t i = 0; i < entries_.size(); ++i) step(i);
    return std::move(violations_);
  }

 private:
  using Conflicts = std::map<std::size_t, Range>;  // by earlier entry

  void step(std::size_t index) {
    const TraceEntry& entry = entries_[index];
    VectorClock& clock = clocks_[static_cast<int>(entry.stream)];
    switch (entry.kind) {
      case TraceEntry::Kind::op: op(index); break;
      case TraceEntry::Kind::record:
        join(clock, clocks_[kHost]);
        records_[entry.record_id] = clock;
        break;
      case TraceEntry::Kind::wait:
        if (const auto record = records_.find(entry.record_id); record != records_.end()) join(clock, record->second);
        break;
      case TraceEntry::Kind::sync: join(clocks_[kHost], clock); break;
      case TraceEntry::Kind::acquire:
        visit(entry.op.writes.front(), [&](Range, History& history) {
          history.block = index;
          history.released = kNone;
        });
        break;
      case TraceEntry::Kind::release: release(index); break;
    }
  }

  /// The block was its last user's until now, read or not: that counts as a write.
  void release(std::size_t index) {
    const TraceEntry& entry = entries_[index];
    const auto record = records_.find(entry.record_id);
    const int stream = static_cast<int>(entry.stream);
    const VectorClock clock = record == records_.end() ? VectorClock{} : record->second;
    Conflicts conflicts;
    visit(entry.op.writes.front(), [&](Range range, History& history) {
      history.released = index;
      if (record == records_.end()) return;  // before the trace
      check(history.writes, clock, stream, range, conflicts);
      check(history.reads, clock, stream, range, conflicts);
      auto& writes = history.writes[stream];
      if (writes.empty() || writes.back().time <= clock[stream]) writes.push_back({clock[stream], index});
    });
    for (const auto& [earlier, range] : conflicts) report(earlier, index, range);
  }

  void op(std::size_t index) {
    const TraceEntry& entry = entries_[index];
    const int stream = static_cast<int>(entry.stream);
    VectorClock& clock = clocks_[stream];
    join(clock, clocks_[kHost]);
    const Access access{clock[stream] + 1, index};
    Conflicts conflicts;
    for (const Buffer& buffer : entry.op.reads) use(buffer, access, stream, false, conflicts);
    for (const Buffer& buffer : entry.op.writes) use(buffer, access, stream, true, conflicts);
    for (const Buffer& buffer : entry.op.arrivals) use(buffer, access, stream, true, conflicts);
    clock[stream] = access.time;
    for (const auto& [earlier, range] : conflicts) report(earlier, index, range);
  }

  template <class Visitor>
  void visit(const Buffer& buffer, const Visitor& visitor) {
    if (buffer.bytes() <= 0) return;
    const auto begin = reinterpret_cast<std::uint64_t>(buffer.data);
    const std::uint64_t end = begin + static_cast<std::uint64_t>(buffer.bytes());
    for (auto piece = cut(begin, end); piece != pieces_.end() && piece->first < end; ++piece)
      visitor(Range{piece->first, piece->second.end}, piece->second);
  }

  void use(const Buffer& buffer, const Access& access, int stream, bool is_write, Conflicts& conflicts) {
    const VectorClock& clock = clocks_[stream];
    visit(buffer, [&](Range range, History& history) {
      if (history.released != kNone) add(conflicts, history.released, range);
      check(history.writes, clock, stream, range, conflicts);
      if (is_write) check(history.reads, clock, stream, range, conflicts);
      auto& accesses = (is_write ? history.writes : history.reads)[stream];
      if (accesses.empty() || accesses.back().entry != access.entry) accesses.push_back(access);
    });
  }

  static void check(const std::array<std::vector<Access>, kStreamRoles>& earlier, const VectorClock& clock, int stream,
                    Range range, Conflicts& conflicts) {
    for (int other = 0; other < kStreamRoles; ++other) {
      if (other == stream) continue;
      for (auto access = earlier[other].rbegin(); access != earlier[other].rend() && access->time > clock[other];
           ++access)
        add(conflicts, access->entry, range);
    }
  }

  static void add(Conflicts& conflicts, std::size_t earlier, Range range) {
    const auto [found, is_new] = conflicts.try_emplace(earlier, range);
    if (!is_new) found->second = {std::min(found->second.begin, range.begin), std::max(found->second.end, range.end)};
  }

  /// Makes pieces cover exactly [begin, end); returns the first.
  std::map<std::uint64_t, History>::iterator cut(std::uint64_t begin, std::uint64_t end) {
    split(begin);
    split(end);
    std::uint64_t at = begin;
    for (auto piece = pieces_.lower_bound(begin); at < end; at = piece->second.end, ++piece)
      if (piece == pieces_.end() || piece->first > at) {
        piece = pieces_.emplace_hint(piece, at, History{});
        const auto next = std::next(piece);
        piece->second.end = next == pieces_.end() ? end : std::min(end, next->first);
      }
    return pieces_.find(begin);
  }

  void split(std::uint64_t at) {
    auto piece = pieces_.upper_bound(at);
    if (piece == pieces_.begin()) return;
    --piece;
    if (piece->first == at || piece->second.end <= at) return;
    pieces_.emplace(at, piece->second);
    piece->second.end = at;
  }

  void report(std::size_t first, std::size_t second, Range range) {
    const std::string bytes =
        fmt::format("{} bytes{} at {:#x}", range.end - range.begin, block_text(range), range.begin);
    const bool is_late =
        entries_[first].kind == TraceEntry::Kind::release && pieces_.find(range.begin)->second.released == first;
    std::string message = is_late
                              ? fmt::format("{} uses {} after {}", text_of(second), bytes, text_of(first))
                              : fmt::format("no event orders {} before {}: both use {}, and at least one writes them",
                                            text_of(first), text_of(second), bytes);
    violations_.push_back({first, second, std::move(message)});
  }

  std::string text_of(std::size_t index) const {
    const TraceEntry& entry = entries_[index];
    const bool is_op = entry.kind == TraceEntry::Kind::op;
    return fmt::format("{}'{}' (entry {}, stream '{}')", is_op ? "" : "the release of ", entry.op.name, index,
                       name_of(entry.stream));
  }

  /// " of 'full_param' of blocks.1", where that is known.
  std::string block_text(Range range) const {
    const std::size_t block = pieces_.find(range.begin)->second.block;
    if (block == kNone) return "";
    const std::string& owner = entries_[block].owner;
    return fmt::format(" of '{}'{}{}", entries_[block].op.name, owner.empty() ? "" : " of ", owner);
  }

  const std::vector<TraceEntry>& entries_;
  std::array<VectorClock, kClocks> clocks_{};
  std::unordered_map<std::int64_t, VectorClock> records_;
  std::map<std::uint64_t, History> pieces_;  // by first address
  std::vector<OrderViolation> violations_;
};

}  // namespace

std::vector<OrderViolation> verify_order(const std::vector<TraceEntry>& entries) { return Verifier(entries).run(); }

}  // namespace zs
