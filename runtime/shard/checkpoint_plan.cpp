#include "runtime/shard/checkpoint_plan.h"

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

std::int64_t round_up(std::int64_t value, std::int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/// The edges of every tensor's ranges, by position.
std::vector<std::vector<Edge>> edges_of(const std::vector<std::vector<ElementRange>>& held, const std::vector<std::int64_t>& numels) {
  std::vector<std::vector<Edge>> edges(numels.size());
  for (std::size_t rank = 0; rank < held.size(); ++rank) {
    for (const ElementRange& range : held[rank]) {
      const auto tensor = static_cast<std::size_t>(range.tensor);
      ZS_CHECK(tensor < numels.size() && range.begin >= 0 && range.count > 0 && range.begin + range.count <= numels[tensor],
               "rank {} holds elements [{}, +{}) of tensor {}", rank, range.begin, range.count, range.tensor);
      edges[tensor].push_back({range.begin, static_cast<int>(rank), true});
      edges[tensor].push_back({range.begin + range.count, static_cast<int>(rank), false});
    }
  }
  for (auto& list : edges) std::sort(list.begin(), list.end(), [](const Edge& a, const Edge& b) { return a.at < b.at; });
  return edges;
}

/// Gives each stretch of elements to one of its holders.
class Dealer {
 public:
  explicit Dealer(std::size_t ranks) : plan_(ranks), load_(ranks, 0) {}

  void deal(std::int64_t tensor, std::int64_t begin, std::int64_t end, const std::multiset<int>& holders) {
    ZS_CHECK(!holders.empty(), "no rank holds elements [{}, {}) of tensor {}", begin, end, tensor);
    const int rank = *std::min_element(holders.begin(), holders.end(), [this](int a, int b) {
      return load_[static_cast<std::size_t>(a)] < load_[static_cast<std::size_t>(b)];
    });
    auto& ranges = plan_[static_cast<std::size_t>(rank)];
    load_[static_cast<std::size_t>(rank)] += end - begin;
    if (!ranges.empty() && ranges.back().tensor == tensor && ranges.back().begin + ranges.back().count == begin) {
      ranges.back().count += end - begin;
    } else {
      ranges.push_back({tensor, begin, end - begin});
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
  const auto edges = edges_of(held, numels);
  Dealer dealer(held.size());
  for (std::size_t tensor = 0; tensor < numels.size(); ++tensor) {
    std::multiset<int> holders;
    std::int64_t at = 0;
    for (const Edge& edge : edges[tensor]) {
      if (edge.at > at) dealer.deal(static_cast<std::int64_t>(tensor), at, edge.at, holders);
      at = edge.at;
      if (edge.is_begin) {
        holders.insert(edge.rank);
      } else {
        holders.erase(holders.find(edge.rank));
      }
    }
    if (at < numels[tensor]) dealer.deal(static_cast<std::int64_t>(tensor), at, numels[tensor], {});
  }
  return dealer.take();
}

std::vector<SavedSegment> lay_out(const std::vector<ElementRange>& ranges, const std::vector<std::int64_t>& element_bytes,
                                  std::int64_t header_bytes) {
  std::vector<SavedSegment> segments;
  std::int64_t offset = header_bytes;
  for (const ElementRange& range : ranges) {
    offset = round_up(offset, kSegmentAlign);
    segments.push_back({range.tensor, range.begin, range.count, offset});
    offset += range.count * element_bytes.at(static_cast<std::size_t>(range.tensor));
  }
  return segments;
}

std::int64_t data_end(const std::vector<SavedSegment>& segments, const std::vector<std::int64_t>& element_bytes,
                      std::int64_t header_bytes) {
  if (segments.empty()) return header_bytes;
  const SavedSegment& last = segments.back();
  return round_up(last.offset + last.count * element_bytes.at(static_cast<std::size_t>(last.tensor)), kSegmentAlign);
}

SegmentIndex::SegmentIndex(const std::vector<std::vector<SavedSegment>>& files, const std::vector<std::int64_t>& numels,
                           std::vector<std::int64_t> element_bytes)
    : entries_(numels.size()), numels_(numels), element_bytes_(std::move(element_bytes)) {
  for (std::size_t file = 0; file < files.size(); ++file) {
    for (const SavedSegment& segment : files[file]) {
      entries_.at(static_cast<std::size_t>(segment.tensor))
          .push_back({segment.begin, segment.count, segment.offset, static_cast<int>(file)});
    }
  }
  for (auto& list : entries_) std::sort(list.begin(), list.end(), [](const Entry& a, const Entry& b) { return a.begin < b.begin; });
}

bool SegmentIndex::is_complete(std::int64_t tensor) const {
  std::int64_t at = 0;
  for (const Entry& entry : entries_.at(static_cast<std::size_t>(tensor))) {
    if (entry.begin != at) return false;
    at += entry.count;
  }
  return at == numels_.at(static_cast<std::size_t>(tensor));
}

std::vector<ReadPart> SegmentIndex::find(const ElementRange& wanted) const {
  const auto& entries = entries_.at(static_cast<std::size_t>(wanted.tensor));
  const std::int64_t end = wanted.begin + wanted.count;
  auto entry = std::upper_bound(entries.begin(), entries.end(), wanted.begin,
                                [](std::int64_t begin, const Entry& candidate) { return begin < candidate.begin; });
  if (entry != entries.begin()) --entry;
  std::vector<ReadPart> parts;
  for (std::int64_t at = wanted.begin; at < end; ++entry) {
    ZS_CHECK(entry != entries.end() && entry->begin <= at && at < entry->begin + entry->count, "element {} of tensor {} was not saved", at,
             wanted.tensor);
    const std::int64_t into = at - entry->begin, count = std::min(end - at, entry->count - into);
    parts.push_back(
        {entry->file, entry->offset + into * element_bytes_.at(static_cast<std::size_t>(wanted.tensor)), at - wanted.begin, count});
    at += count;
  }
  return parts;
}

}  // namespace zs
