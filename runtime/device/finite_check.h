#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/device/stream.h"

namespace zs {

/// Looks through what each op of a CPU device has written, f32 and bf16, for a value that is not finite. A device has
/// it by Trace::check_finite.
class FiniteCheck {
 public:
  /// Place in a step that an op was enqueued for.
  struct Place {
    const char* phase = "";        ///< Trace::phase
    std::string unit;              ///< used last; empty: none
    std::int64_t micro_batch = 0;  ///< number on this rank
  };
  /// The first op, in the order of the program, that wrote one.
  struct Finding {
    std::string op;
    StreamRole stream;
    Place place;
    std::int64_t element = 0, elems = 0;  ///< the first that is not finite, of so many of what it wrote
    std::int64_t count = 0;               ///< so many of these are not
    double value = 0;
    bool read_some = false;  ///< operands, as far as they still stand there, had some already
  };

  /// Place of the program, but for its phase. The host's thread writes it.
  Place& place() { return place_; }
  /// The op's work, and a look at what it has written. The host's thread, in the order of the program.
  Work watched(const OpInfo& info, StreamRole stream, const char* phase, Work work);
  /// When the device is idle.
  const std::optional<Finding>& first() const { return first_; }

 private:
  void look(std::int64_t number, const OpInfo& info, StreamRole stream, const Place& place);

  Place place_;
  std::int64_t ops_ = 0;
  std::mutex mutex_;
  std::int64_t number_ = 0;  // that of first_
  std::optional<Finding> first_;
};

}  // namespace zs
