#include "runtime/shard/checkpoint/checkpoint_plan.h"

#include <algorithm>
#include <set>

#include "runtime/base/check.h"

namespace zs {
namespace {

struct Edge {
  std::int64_t at;
  int rank;
  bool is_begin;
};

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// One tensor: into how many runs it is cut, how long each is, and the edges in each of its ranges, by position.
struct Cut {
  std::int64_t runs = 1, length = 0;
  std::vector<Edge> edges;
};

std::vector<Cut> cuts_of(const std::vector<std::vector<ElementRange>>& held, const std::vector<std::int64_t>& numels) {
  std::vector<Cut> cuts;
  for (const std::int64_t numel : numels) cuts.push_back({1, numel, {}});
  for (std::size_t rank = 0; rank < held.size(); ++rank) {
    for (const ElementRange& range : held[rank]) {
      ZS_CHECK(range.tensor >= 0 && range.tensor < std::ssize(numels), "rank {} holds elements of tensor {}", rank,
               range.tensor);
      Cut& cut = cuts[static_cast<std::size_t>(range.tensor)];
      const std::int64_t numel = numels[static_cast<std::size_t>(range.tensor)];
      if (cut.edges.empty() && range.runs > 1) cut = {range.runs, range.stride, {}};
      ZS_CHECK(range.runs == cut.runs && cut.runs * cut.length == numel,
               "rank {} holds {} runs of tensor {}, others {}", rank, range.runs, range.tensor, cut.runs);
      ZS_CHECK(range.begin >= 0 && range.count > 0 && range.begin + range.count <= cut.length,
               "rank {} holds elements [{}, +{}) of tensor {}", rank, range.begin, range.count, range.tensor);
      cut.edges.push_back({range.begin, static_cast<int>(rank), true});
      cut.edges.push_back({range.begin + range.count, static_cast<int>(rank), false});
    }
  }
  for (Cut& cut : cuts)
    std::sort(cut.edges.begin(), cut.edges.end(), [](const Edge& a, const Edge& b) { return a.at < b.at; });
  return cuts;
}

/// Gives each stretch of elements to one of its holders.
class Dealer {
 public:
  explicit Dealer(std::size_t ranks) : plan_(ranks), load_(ranks, 0) {}

  void deal(const ElementRange& range, const std::multiset<int>& holders) {
    const auto& [tensor, begin, count, runs, stride] = range;
    const std::int64_t end = begin + count;
    ZS_CHECK(!holders.empty(), "no rank holds elements [{}, {}) of tensor {}", begin, end, tensor);
    const int rank = *std::min_element(holders.begin(), holders.end(), [this](int a, int b) {
      return load_[static_cast<std::size_t>(a)] < load_[static_cast<std::size_t>(b)];
    });
    auto& ranges = plan_[static_cast<std::size_t>(rank)];
    load_[static_cast<std::size_t>(rank)] += range.elems();
    if (!ranges.empty() && ranges.back().tensor == tensor && ranges.back().begin + ranges.back().count == begin) {
      ranges.back().count += count;
    } else {
      ranges.push_back(range);
    }
  }
  std::vector<std::vector<ElementRange>> take() { return std::move(plan_); }

 private:
  std::vector<std::vector<ElementRange>> plan_;
  std::vector<std::int64_t> load_;  // elements
};

}  // namespace

std::vector<std::vector<ElementRange>> plan_writes(const std::vector<std::vector<ElementRange>>& held,
                                                   const std::vector<std::int64_t>& numels) {
  const std::vector<Cut> cuts = cuts_of(held, numels);
  Dealer dealer(held.size());
  for (std::size_t tensor = 0; tensor < numels.size(); ++tensor) {
    const Cut& cut = cuts[tensor];
    const auto range = [&](std::int64_t begin, std::int64_t end) {
      return ElementRange{static_cast<std::int64_t>(tensor), begin, end - begin, cut.runs,
                          cut.runs > 1 ? cut.length : 0};
    };
    std::multiset<int> holders;
    std::int64_t at = 0;
    for (const Edge& edge : cut.edges) {
      if (edge.at > at) dealer.deal(range(at, edge.at), holders);
      at = edge.at;
      if (edge.is_begin) {
        holders.insert(edge.rank);
      } else {
        holders.erase(holders.find(edge.rank));
      }
    }
    if (at < cut.length) dealer.deal(range(at, cut.length), {});
  }
  return dealer.take();
}

std::vector<SavedSegment> lay_out(const std::vector<ElementRange>& ranges,
                                  const std::vector<std::int64_t>& element_bytes, std::int64_t header_bytes) {
  std::vector<SavedSegment> segments;
  std::int64_t offset = header_bytes;
  for (const ElementRange& range : ranges) {
    offset = round_up(offset, kSegmentAlign);
    segments.push_back({range.tensor, range.begin, range.count, offset, range.runs, range.stride});
    offset += range.elems() * element_bytes.at(static_cast<std::size_t>(range.tensor));
  }
  return segments;
}

std::int64_t data_end(const std::vector<SavedSegment>& segments, const std::vector<std::int64_t>& element_bytes,
                      std::int64_t header_bytes) {
  if (segments.empty()) return header_bytes;
  const SavedSegment& last = segments.back();
  return round_up(last.offset + last.elems() * element_bytes.at(static_cast<std::size_t>(last.tensor)), kSegmentAlign);
}

SegmentIndex::SegmentIndex(const std::vector<std::vector<SavedSegment>>& files, const std::vector<std::int64_t>& numels,
                           std::vector<std::int64_t> element_bytes)
    : entries_(numels.size()), strides_(numels), numels_(numels), element_bytes_(std::move(element_bytes)) {
  for (std::size_t file = 0; file < files.size(); ++file) {
    for (const SavedSegment& segment : files[file]) {
      const auto tensor = static_cast<std::size_t>(segment.tensor);
      auto& entries = entries_.at(tensor);
      const std::int64_t stride = segment.runs > 1 ? segment.stride : numels_[tensor];
      if (entries.empty()) strides_[tensor] = stride;
      if (strides_[tensor] != stride) strides_[tensor] = 0;
      entries.push_back({segment.begin, segment.count, segment.offset, static_cast<int>(file)});
    }
  }
  for (auto& list : entries_)
    std::sort(list.begin(), list.end(), [](const Entry& a, const Entry& b) { return a.begin < b.begin; });
}

bool SegmentIndex::is_complete(std::int64_t tensor) const {
  const auto number = static_cast<std::size_t>(tensor);
  std::int64_t at = 0;
  for (const Entry& entry : entries_.at(number)) {
    if (entry.begin != at) return false;
    at += entry.count;
  }
  return at == strides_[number] && (at > 0 || numels_[number] == 0);
}

std::vector<ReadPart> SegmentIndex::find(const ElementRange& wanted) const {
  const auto tensor = static_cast<std::size_t>(wanted.tensor);
  const auto& entries = entries_.at(tensor);
  const std::int64_t end = wanted.begin + wanted.count, stride = strides_[tensor];
  ZS_CHECK(wanted.runs == 1, "{} runs of tensor {} are looked up at once", wanted.runs, wanted.tensor);
  std::vector<ReadPart> parts;
  for (std::int64_t at = wanted.begin; at < end;) {
    const std::int64_t run = at / stride, column = at % stride;
    auto entry = std::upper_bound(entries.begin(), entries.end(), column,
                                  [](std::int64_t begin, const Entry& candidate) { return begin < candidate.begin; });
    if (entry != entries.begin()) --entry;
    ZS_CHECK(entry != entries.end() && entry->begin <= column && column < entry->begin + entry->count,
             "element {} of tensor {} was not saved", at, wanted.tensor);
    const std::int64_t into = column - entry->begin, count = std::min(end - at, entry->count - into);
    parts.push_back(
        {entry->file, entry->offset + (run * entry->count + into) * element_bytes_[tensor], at - wanted.begin, count});
    at += count;
  }
  return parts;
}

}  // namespace zs
