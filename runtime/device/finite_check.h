#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/device/trace.h"

namespace zs {

/// Looks through what each op of a CPU device has written, f32 and bf16, for a value that is not finite. A device has
/// it by Trace::check_finite; the host resets and asks it when the device is idle.
class FiniteCheck {
 public:
  /// The first op, in the order of the program, that wrote one.
  struct Finding {
    std::string op;
    StreamRole stream;
    OpPlace place;
    std::size_t write = 0;            ///< index of one of the op's writes
    std::int64_t element = 0, elems;  ///< the first that is not finite, of so many of that write
    std::int64_t count = 0;           ///< so many of these are not
    double value = 0;
    bool read_some = false;  ///< operands, as far as they still stand there, had some already
  };

  /// Number of the next op in the order of the program. The host's thread.
  std::int64_t next() { return next_++; }
  /// Looks at an op that has just run. Any thread.
  void look(std::int64_t number, const OpInfo& info, StreamRole stream, const OpPlace& place);
  std::optional<Finding> first() const { return first_; }
  void reset() { first_.reset(); }

 private:
  std::int64_t next_ = 0;
  std::mutex mutex_;
  std::int64_t number_ = 0;  // that of first_
  std::optional<Finding> first_;
};

}  // namespace zs
