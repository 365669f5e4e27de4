#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace zs {

/// Samples of T tokens each, in memory of the host, as data gives them.
struct SampleBatch {
  std::vector<std::int32_t> inputs, targets;  ///< (samples, T) each; kIgnoredTarget where nothing that counts follows
  /// Lengths of the documents in them, one after the other; none: each sample is one.
  std::vector<std::int64_t> lengths = {};
};

/// Reads the micro-batch that begins with sample `first`.
using ReadSamples = std::function<SampleBatch(std::int64_t first)>;

}  // namespace zs
