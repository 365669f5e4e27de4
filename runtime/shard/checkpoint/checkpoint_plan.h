#pragma once

#include <cstdint>
#include <vector>

namespace zs {

/// Elements [begin, begin + count) of one tensor, in row-major order; or, of a tensor that was cut on a later dim, the
/// same of each of `runs` stretches of `stride` elements, which together are the tensor. Tensors are numbered within
/// one checkpoint.
struct ElementRange {
  std::int64_t tensor = 0, begin = 0, count = 0, runs = 1, stride = 0;
  std::int64_t elems() const { return count * runs; }
  bool operator==(const ElementRange&) const = default;
};

/// A range of a tensor in a data file, `offset` bytes from its begin, run after run.
struct SavedSegment {
  std::int64_t tensor = 0, begin = 0, count = 0, offset = 0, runs = 1, stride = 0;
  std::int64_t elems() const { return count * runs; }
  bool operator==(const SavedSegment&) const = default;
};

/// Plan of who writes what: rank r holds the ranges `held[r]`, of tensors with `numels` elements. Every element is
/// given to one of the ranks that hold it, to the one with the least to write so far; so replicas share the work and
/// nothing is written twice. The plan is alike on every rank. Each rank's ranges come in the order of tensors and
/// elements. An element that nobody holds is an Error(internal), and so are ranges of one tensor that are cut on
/// different dims.
std::vector<std::vector<ElementRange>> plan_writes(const std::vector<std::vector<ElementRange>>& held,
                                                   const std::vector<std::int64_t>& numels);

/// Every segment begins on a multiple of this many bytes.
inline constexpr std::int64_t kSegmentAlign = 64;

/// Places ranges in a file after `header_bytes`, one after the other. `element_bytes` of each tensor.
std::vector<SavedSegment> lay_out(const std::vector<ElementRange>& ranges,
                                  const std::vector<std::int64_t>& element_bytes, std::int64_t header_bytes);
/// End of the last segment, rounded up.
std::int64_t data_end(const std::vector<SavedSegment>& segments, const std::vector<std::int64_t>& element_bytes,
                      std::int64_t header_bytes);

/// A part of a wanted range: `count` elements at `offset` bytes of a file belong at element `target` of it.
struct ReadPart {
  int file = 0;
  std::int64_t offset = 0, target = 0, count = 0;
  bool operator==(const ReadPart&) const = default;
};

/// Finds saved elements again, however they were cut. A value.
class SegmentIndex {
 public:
  /// `files[f]`: the segments of file f. The segments of each tensor must not overlap (see `is_complete`).
  SegmentIndex(const std::vector<std::vector<SavedSegment>>& files, const std::vector<std::int64_t>& numels,
               std::vector<std::int64_t> element_bytes);

  /// True if every element of the tensor was saved exactly once.
  bool is_complete(std::int64_t tensor) const;
  /// Finds the parts to read, in the order of elements. The tensor is complete and holds the range, which is one run.
  std::vector<ReadPart> find(const ElementRange& wanted) const;

 private:
  struct Entry {
    std::int64_t begin, count, offset;
    int file;
  };
  std::vector<std::vector<Entry>> entries_;  // entries of each tensor, by begin
  std::vector<std::int64_t> strides_;  // all of the tensor, where it is not cut on a later dim; 0: cut in two ways
  std::vector<std::int64_t> numels_, element_bytes_;
};

}  // namespace zs
