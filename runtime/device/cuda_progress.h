#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>

#include "runtime/device/cuda_event.h"

namespace zs {

/// Progress of the GPU in one stream, as far as it is known: the host runs ahead of it, so what was enqueued last says
/// little. Known at each record; between two of them it is said what lies there. The host thread reports, any thread
/// asks.
class CudaProgress {
 public:
  explicit CudaProgress(const CudaContext& context) : context_(context) {}

  /// Host: one more op.
  void enqueued(std::string label);
  /// Host: one more entry, which the GPU passes when all before it is done.
  void recorded(CudaEventRecord& record);
  /// Host: the stream was seen to be empty, or is given up.
  void finished();

  /// Entries that are done. Asks the driver.
  std::uint64_t completed();
  /// "idle", or "after OP, before or in OP". Asks the driver.
  std::string activity();
  /// The label of what was enqueued last.
  std::string last_label();

 private:
  struct Mark {
    CudaEventRecord* record;
    std::uint64_t position;
    std::string label;  // label of the last op before it
  };
  /// Polls the driver; an error of it is no answer.
  void look();

  const CudaContext& context_;
  std::mutex mutex_;
  std::deque<Mark> marks_;  // not known to be passed
  std::uint64_t enqueued_ = 0, completed_ = 0;
  std::string last_label_, done_label_;
};

}  // namespace zs
