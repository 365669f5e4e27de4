#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace zs {

/// Cuts of a batch of sequences (B, T) into documents, which have nothing to do with each other: a token sees those of
/// its own document, and positions begin anew with each. Immutable, and cheap to copy.
class Documents {
 public:
  /// `count` documents of `length` tokens each, one after the other from token `first` of the batch on.
  struct Run {
    std::int64_t first = 0, count = 0, length = 0;
    std::int64_t tokens() const { return count * length; }
  };

  /// Makes each sequence one document.
  Documents() = default;
  /// Makes documents of these numbers of tokens, sequence after sequence; none is in two sequences.
  explicit Documents(const std::vector<std::int64_t>& lengths);

  bool are_whole_sequences() const { return runs_ == nullptr; }
  /// Documents of a batch (batch, time), as runs. UsageError that names `op` where they were made for another shape.
  std::vector<Run> runs(const char* op, std::int64_t batch, std::int64_t time) const;

 private:
  std::shared_ptr<const std::vector<Run>> runs_;  // null: whole sequences
};

}  // namespace zs
