#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/shape.h"
#include "runtime/tensor/parameter.h"

namespace zs {

/// Cut of a unit's parameters over one axis of the job's grid: each rank along it owns an equal part of each, and its
/// parameters have that part's shape. Initial values, norm and checkpoints know an element by its place in the whole
/// parameter. A value, alike on every rank.
struct Partition {
  std::string axis = {};  ///< axis of ShardOptions::grid; empty: nothing is cut
  /// Dim that a parameter is cut on, negative counts from the last, by the first pattern (NamePattern) that its name
  /// matches. Parameters that match none are whole on every rank: only along an axis whose ranks read the same data.
  std::vector<std::pair<std::string, int>> dims = {};
  /// Axes that the parameters are cut over: one or none.
  std::vector<std::string> axes() const { return axis.empty() ? std::vector<std::string>{} : std::vector{axis}; }
  bool operator==(const Partition&) const = default;
};

/// This rank's parts of the parameters of a unit, one for each. `own`: index and count of a part. `reads_data`: ranks
/// along the axis read different data. UsageError where a pattern matches no parameter, or one must be cut and is not.
std::vector<ParameterPart> parts_of(const std::string& unit, const std::vector<Parameter*>& parameters,
                                    const Partition& partition, const ParameterPart& own, bool reads_data);

/// Equal parts of a tensor along one dim, or of each of its blocks along it, and where elements lie in whole and parts,
/// both row-major. A value.
class TensorParts {
 public:
  TensorParts(const Shape& whole, int dim, int count) : TensorParts(whole, {dim, 0, count}) {}
  /// Parts of which `part` is one, whichever.
  TensorParts(const Shape& whole, const ParameterPart& part);

  /// Elements of one part.
  std::int64_t numel() const { return numel_; }
  /// Index in the whole of element `i` of a part.
  std::int64_t in_whole(int part, std::int64_t i) const {
    const std::int64_t row = i / row_, at = i % row_;
    const Block& block = block_at(at, 1);
    return row * row_ * count_ + block.begin * count_ + part * block.size + at - block.begin;
  }
  /// Count of a part's elements from `i` on that follow each other in the whole too.
  std::int64_t left(std::int64_t i) const {
    const Block& block = block_at(i % row_, 1);
    return block.begin + block.size - i % row_;
  }
  struct Place {
    int part;
    std::int64_t element;
  };
  /// Place of the whole's element `i`.
  Place find(std::int64_t i) const {
    const std::int64_t row = i / (row_ * count_), at = i % (row_ * count_);
    const Block& block = block_at(at, count_);
    const std::int64_t in_block = at - block.begin * count_;
    return {static_cast<int>(in_block / block.size), row * row_ + block.begin + in_block % block.size};
  }

 private:
  /// Elements of a block in one row of a part, which is what lies at one index of the dims before the cut one.
  struct Block {
    std::int64_t begin, size;
  };
  /// Block of element `at` of `parts` parts' rows together.
  const Block& block_at(std::int64_t at, std::int64_t parts) const {
    std::size_t i = 0;
    while (i + 1 < blocks_.size() && at >= blocks_[i + 1].begin * parts) ++i;
    return blocks_[i];
  }

  std::int64_t count_, numel_, row_ = 0;
  std::vector<Block> blocks_;
};

}  // namespace zs
