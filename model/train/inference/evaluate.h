#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/train/inference/inference.h"

namespace zs {

/// Request of `train evaluate`.
struct EvaluateRequest {
  std::vector<std::string> files;  ///< files, patterns, folders; none: the validation data
  std::string logits;              ///< a new file for them; empty: none
  std::string out;                 ///< a new file for what each line of tasks came to; empty: none
  std::string program_folder;      ///< validation data is looked up there, too
};

/// The targets of `tokens` tokens in micro-batches, which do not depend on the number of ranks: windows of `sequence`
/// inputs that follow each other, `rows` to a micro-batch; then the whole windows that are left; then the last window,
/// where it is shorter. A value.
class EvaluationBatches {
 public:
  struct Batch {
    std::int64_t first = 0;             ///< input, of all
    std::int64_t rows = 1, length = 1;  ///< (rows, length) inputs
    std::int64_t targets() const { return rows * length; }
  };

  EvaluationBatches(std::int64_t tokens, std::int64_t sequence, std::int64_t rows);

  std::int64_t count() const { return full_ + (left_ > 0) + (rest_ > 0); }
  std::int64_t targets() const { return targets_; }
  Batch at(std::int64_t i) const;
  /// One batch of each shape.
  std::vector<Batch> shapes() const;

 private:
  std::int64_t targets_, sequence_, rows_;
  std::int64_t full_, left_, rest_;  // whole micro-batches; windows, and then inputs, that are left
};

/// Collective: the mean cross entropy of every token of the data but the first, each seen after those of its window;
/// prints a line to stdout, on one rank, and writes the logits (targets, vocab) that are asked for. The exit code.
int evaluate(Inference& inference, const EvaluateRequest& request);

}  // namespace zs
