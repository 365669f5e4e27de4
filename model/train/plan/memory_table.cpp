#include "model/train/plan/memory_table.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace zs {
namespace {

/// Replays a trace and keeps the buffers that reach into the step.
class Replay {
 public:
  Replay(std::size_t begin, std::size_t end) : begin_(begin), end_(end) {}

  void step(std::size_t index, const TraceEntry& entry) {
    switch (entry.kind) {
      case TraceEntry::Kind::acquire: acquire(index, entry); break;
      case TraceEntry::Kind::release: release(index, entry); break;
      case TraceEntry::Kind::op:
        if (index < begin_) break;
        for (const Buffer& buffer : entry.op.reads) use(index, buffer);
        for (const Buffer& buffer : entry.op.writes) use(index, buffer);
        break;
      default: break;
    }
  }

  std::vector<PlannedBuffer> take() {
    std::erase_if(buffers_, [](const PlannedBuffer& buffer) { return buffer.released <= 0; });
    return std::move(buffers_);
  }

 private:
  static std::uint64_t address(const Buffer& buffer) { return reinterpret_cast<std::uint64_t>(buffer.data); }
  std::int64_t moment(std::size_t index) const {
    return index < begin_ ? 0 : static_cast<std::int64_t>(index - begin_);
  }

  void acquire(std::size_t index, const TraceEntry& entry) {
    const Buffer& block = entry.op.writes.at(0);
    live_[address(block)] = buffers_.size();
    buffers_.push_back({.owner = entry.owner,
                        .label = entry.op.name,
                        .bytes = block.bytes(),
                        .acquired = moment(index),
                        .released = static_cast<std::int64_t>(end_ - begin_)});
  }

  void release(std::size_t index, const TraceEntry& entry) {
    const auto found = live_.find(address(entry.op.writes.at(0)));
    ZS_CHECK(found != live_.end(), "the trace releases a block of '{}' that it has not acquired", entry.op.name);
    buffers_[found->second].released = moment(index);
    live_.erase(found);
  }

  void use(std::size_t index, const Buffer& buffer) {
    if (buffer.empty()) return;
    auto block = live_.upper_bound(address(buffer));
    if (block == live_.begin()) return;
    PlannedBuffer& used = buffers_[(--block)->second];
    if (address(buffer) >= block->first + static_cast<std::uint64_t>(used.bytes)) return;
    if (used.first_use < 0) used.first_use = moment(index);
    used.last_use = moment(index);
  }

  const std::size_t begin_, end_;
  std::vector<PlannedBuffer> buffers_;
  std::map<std::uint64_t, std::size_t> live_;  // by first address
};

/// "adamw:blocks.3" -> "adamw"
std::string op_kind(std::span<const TraceEntry> step, std::int64_t moment) {
  if (moment < 0) return "-";
  const std::string& name = step[static_cast<std::size_t>(moment)].op.name;
  return name.substr(0, name.find(':'));
}

/// Owners that differ in a number: "blocks.3.mlp.experts" is number 3 of "blocks." and ".mlp.experts"; -1: no number.
struct Series {
  std::string before, after;
  int number = -1;
};

Series series_of(const std::string& owner) {
  constexpr std::string_view kDigits = "0123456789";
  constexpr std::size_t kMostDigits = 6;
  const std::size_t dot = owner.find('.');
  const std::size_t begin = dot == owner.npos ? owner.size() : dot + 1;
  const std::size_t end = std::min(owner.find_first_not_of(kDigits, begin), owner.size());
  if (begin >= end || end - begin > kMostDigits || (end < owner.size() && owner[end] != '.'))
    return {owner.empty() ? "-" : owner, ""};
  return {owner.substr(0, begin), owner.substr(end), std::stoi(owner.substr(begin, end - begin))};
}

struct Row {
  std::int64_t count = 0, at_peak = 0;
  int first = -1, last = -1;  // numbers in the owners' series
};

std::string owners(const std::string& before, const std::string& after, const Row& row) {
  if (row.first < 0) return before;
  return row.first == row.last ? fmt::format("{}{}{}", before, row.first, after)
                               : fmt::format("{}{}-{}{}", before, row.first, row.last, after);
}

}  // namespace

std::vector<PlannedBuffer> buffers_of(std::span<const TraceEntry> trace, std::size_t begin, std::size_t end) {
  ZS_CHECK(begin <= end && end <= trace.size(), "entries [{}, {}) of a trace of {}", begin, end, trace.size());
  Replay replay(begin, end);
  for (std::size_t i = 0; i < end; ++i) replay.step(i, trace[i]);
  return replay.take();
}

std::int64_t peak_moment(std::span<const PlannedBuffer> buffers) {
  std::map<std::int64_t, std::int64_t> changes{{0, 0}};
  for (const PlannedBuffer& buffer : buffers) {
    changes[buffer.acquired] += buffer.bytes;
    changes[buffer.released] -= buffer.bytes;
  }
  std::int64_t live = 0, most = -1, when = 0;
  for (const auto& [moment, change] : changes) {
    live += change;
    if (live > most) most = live, when = moment;
  }
  return when;
}

std::int64_t live_bytes_at(std::span<const PlannedBuffer> buffers, std::int64_t moment) {
  std::int64_t bytes = 0;
  for (const PlannedBuffer& buffer : buffers) bytes += buffer.is_live_at(moment) ? buffer.bytes : 0;
  return bytes;
}

std::string describe_grouped(std::span<const PlannedBuffer> buffers, std::span<const TraceEntry> step) {
  // Key of a row: label, owners' series, first op, bytes.
  using Key = std::tuple<std::string, std::string, std::string, std::string, std::int64_t>;
  std::map<Key, Row> rows;
  const std::int64_t peak = peak_moment(buffers);
  for (const PlannedBuffer& buffer : buffers) {
    const auto [before, after, number] = series_of(buffer.owner);
    Row& row = rows[{buffer.label, before, after, op_kind(step, buffer.first_use), buffer.bytes}];
    ++row.count;
    row.at_peak += buffer.is_live_at(peak) ? 1 : 0;
    row.first = row.count == 1 ? number : std::min(row.first, number);
    row.last = std::max(row.last, number);
  }
  std::vector<std::pair<Key, Row>> sorted(rows.begin(), rows.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return std::tuple(a.second.at_peak * std::get<4>(a.first), std::get<4>(a.first)) >
           std::tuple(b.second.at_peak * std::get<4>(b.first), std::get<4>(b.first));
  });
  constexpr const char* format = "  {:<12}{:<25} {:<24}{:>8}{:>9}{:>14}{:>16}\n";
  std::string text =
      fmt::format(format, "kind", "unit", "first used by", "buffers", "at peak", "bytes each", "bytes at peak");
  for (const auto& [key, row] : sorted) {
    const auto& [label, before, after, op, bytes] = key;
    text +=
        fmt::format(format, label, owners(before, after, row), op, row.count, row.at_peak, bytes, row.at_peak * bytes);
  }
  return text + fmt::format("  {:<93}{:>16}\n", "peak_bytes", live_bytes_at(buffers, peak));
}

std::string describe_all(std::span<const PlannedBuffer> buffers, std::span<const TraceEntry> step) {
  std::vector<std::int64_t> numbers(step.size());  // numbers of the ops, from 1
  std::int64_t ops = 0;
  for (std::size_t i = 0; i < step.size(); ++i) numbers[i] = step[i].kind == TraceEntry::Kind::op ? ++ops : ops;
  const auto use = [&](std::int64_t moment) {
    return moment < 0 ? std::string("-")
                      : fmt::format("{} {}", numbers[static_cast<std::size_t>(moment)],
                                    step[static_cast<std::size_t>(moment)].op.name);
  };
  std::string text = fmt::format("  {:<12}{:<25} {:>14}  {:<36}{}\n", "kind", "unit", "bytes", "first use", "last use");
  for (const PlannedBuffer& buffer : buffers) {
    text += fmt::format("  {:<12}{:<25} {:>14}  {:<36}{}\n", buffer.label, buffer.owner.empty() ? "-" : buffer.owner,
                        buffer.bytes, use(buffer.first_use), use(buffer.last_use));
  }
  return text;
}

}  // namespace zs
