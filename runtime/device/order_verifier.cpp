#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <unordered_map>

#include "runtime/device/trace.h"

namespace zs {
namespace {

constexpr int kHost = kStreamRoles, kClocks = kStreamRoles + 1;

/// For each stream, the number of its ops that are known to be done.
using Clock = std::array<std::int64_t, kClocks>;

void join(Clock& clock, const Clock& other) {
  for (int i = 0; i < kClocks; ++i) clock[i] = std::max(clock[i], other[i]);
}

struct Access {
  std::int64_t time;  // the op's number on its stream, from 1
  std::size_t entry;
};

/// What happened to one range of addresses whose bytes have always been used alike, per stream, oldest first.
struct History {
  std::uint64_t end = 0;
  std::array<std::vector<Access>, kStreamRoles> reads, writes;
};

struct Range {
  std::uint64_t begin, end;
};

/// Checks each op against the history of every byte range it touches. Ranges are split where accesses begin and end, so an access
/// costs its number of pieces; the newest access of a stream that is in order vouches for all older ones.
class Verifier {
 public:
  explicit Verifier(const std::vector<TraceEntry>& entries) : entries_(entries) {}

  std::vector<OrderViolation> run() {
    for (std::size_t i = 0; i < entries_.size(); ++i) step(i);
    return std::move(violations_);
  }

 private:
  void step(std::size_t index) {
    const TraceEntry& entry = entries_[index];
    Clock& clock = clocks_[static_cast<int>(entry.stream)];
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
      case TraceEntry::Kind::release: break;  // what orders a block's users are the events around them
    }
  }

  void op(std::size_t index) {
    const TraceEntry& entry = entries_[index];
    const int stream = static_cast<int>(entry.stream);
    Clock& clock = clocks_[stream];
    join(clock, clocks_[kHost]);
    const Access access{clock[stream] + 1, index};
    std::map<std::size_t, Range> conflicts;  // by earlier op
    for (const Buffer& buffer : entry.op.reads) visit(buffer, access, stream, false, conflicts);
    for (const Buffer& buffer : entry.op.writes) visit(buffer, access, stream, true, conflicts);
    clock[stream] = access.time;
    for (const auto& [earlier, range] : conflicts) report(earlier, index, range);
  }

  void visit(const Buffer& buffer, const Access& access, int stream, bool is_write, std::map<std::size_t, Range>& conflicts) {
    if (buffer.bytes() <= 0) return;
    const auto begin = reinterpret_cast<std::uint64_t>(buffer.data);
    const std::uint64_t end = begin + static_cast<std::uint64_t>(buffer.bytes());
    for (auto piece = cut(begin, end); piece != pieces_.end() && piece->first < end; ++piece) {
      History& history = piece->second;
      check(history.writes, stream, {piece->first, history.end}, conflicts);
      if (is_write) check(history.reads, stream, {piece->first, history.end}, conflicts);
      auto& accesses = (is_write ? history.writes : history.reads)[stream];
      if (accesses.empty() || accesses.back().entry != access.entry) accesses.push_back(access);
    }
  }

  void check(const std::array<std::vector<Access>, kStreamRoles>& earlier, int stream, Range range,
             std::map<std::size_t, Range>& conflicts) const {
    for (int other = 0; other < kStreamRoles; ++other) {
      if (other == stream) continue;
      const std::int64_t known = clocks_[stream][other];
      for (auto access = earlier[other].rbegin(); access != earlier[other].rend() && access->time > known; ++access) {
        const auto [found, is_new] = conflicts.try_emplace(access->entry, range);
        if (is_new) continue;
        found->second = {std::min(found->second.begin, range.begin), std::max(found->second.end, range.end)};
      }
    }
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
    const TraceEntry &a = entries_[first], &b = entries_[second];
    violations_.push_back(
        {first, second,
         fmt::format("no event orders '{}' (entry {}, stream '{}') before '{}' (entry {}, stream '{}'): both use "
                     "{} bytes at {:#x}, and at least one writes them",
                     a.op.name, first, name_of(a.stream), b.op.name, second, name_of(b.stream), range.end - range.begin, range.begin)});
  }

  const std::vector<TraceEntry>& entries_;
  std::array<Clock, kClocks> clocks_{};
  std::unordered_map<std::int64_t, Clock> records_;
  std::map<std::uint64_t, History> pieces_;  // by first address
  std::vector<OrderViolation> violations_;
};

}  // namespace

std::vector<OrderViolation> verify_order(const std::vector<TraceEntry>& entries) { return Verifier(entries).run(); }

}  // namespace zs
