#pragma once

#include <functional>
#include <vector>

#include "runtime/shard/execute/executor.h"

namespace zs {

/// Norms of whole parameters, of which ranks hold parts: of the master weights, and of what lies in the place of the
/// gradients. They are summed in fixed point, so that no cut of a parameter, and no number of ranks, changes a bit of
/// them. Owned by an optimizer; one host thread uses it. On return from `measure`: enqueued on compute, not done.
class ParameterNorms {
 public:
  explicit ParameterNorms(Executor& executor);

  /// Takes the norms of those parameters (by unit and place in it) that `is_updated` names, alike on every rank, of
  /// units that have a gradient. Collective.
  using IsUpdated = std::function<bool(std::size_t unit, std::size_t parameter)>;
  void measure(const IsUpdated& is_updated);
  /// f32 (2): norm of the weights, and of the gradient.
  Buffer of(std::size_t unit, std::size_t parameter) const { return all().slice(2 * place(unit, parameter), 2); }
  Buffer all() const { return norms_.buffer(DType::f32, 2 * parameters_); }

 private:
  struct Part {
    Buffer elements;    // that this rank counts
    std::int64_t norm;  // its place among all
  };
  std::int64_t place(std::size_t unit, std::size_t parameter) const {
    return first_.at(unit) + static_cast<std::int64_t>(parameter);
  }
  std::vector<Part> parts(const IsUpdated& is_updated) const;
  void launch_parts(const char* name, std::vector<Part> parts, std::vector<Buffer> reads, const Buffer& out,
                    std::function<void(ExecContext&, const Part*)> work) const;
  Buffer exponents() const { return exponents_.buffer(DType::i32, 2 * parameters_); }
  Buffer sums() const { return sums_.buffer(DType::i64, 2 * parameters_); }

  Executor& executor_;
  std::int64_t parameters_ = 0;
  std::vector<std::int64_t> first_;  // place of each unit's first parameter
  std::vector<int> shifts_;          // fixed-point bits that leave room for every element of each parameter
  Memory norms_, exponents_, sums_, scalars_;
};

}  // namespace zs
