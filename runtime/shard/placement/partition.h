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

/// Equal parts of a tensor along one dim, and where elements lie in whole and parts, both row-major. A value.
class TensorParts {
 public:
  TensorParts(const Shape& whole, int dim, int count);

  /// Elements of one part.
  std::int64_t numel() const { return numel_; }
  /// Index in the whole of element `i` of a part.
  std::int64_t in_whole(int part, std::int64_t i) const { return i / run_ * run_ * count_ + part * run_ + i % run_; }
  /// Count of a part's elements from `i` on that follow each other in the whole too.
  std::int64_t left(std::int64_t i) const { return run_ - i % run_; }
  struct Place {
    int part;
    std::int64_t element;
  };
  /// Place of the whole's element `i`.
  Place find(std::int64_t i) const {
    return {static_cast<int>(i / run_ % count_), i / (run_ * count_) * run_ + i % run_};
  }

 private:
  std::int64_t count_, numel_, run_;
};

}  // namespace zs
