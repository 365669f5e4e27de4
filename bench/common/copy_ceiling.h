#pragma once

#include <memory>

#include "runtime/device/device.h"

namespace zs::bench {

/// The ceiling that memory-bound kernels are compared with: the best rate, bytes read plus bytes written, at which the
/// device's team has copied an array, each thread its part, in this process. Two ways are tried: the C library's
/// memcpy, and stores that bypass the caches where the processor has them, which spare reading what is overwritten.
/// Owns a device and two arrays, each of twice the last-level cache, while it lives. One host thread uses it.
class CopyCeiling {
 public:
  CopyCeiling(const DeviceOptions& options, std::int64_t cache_bytes);

  /// Copies `rounds` times more in each way. Blocks the host.
  void measure(int rounds);
  /// Copies in one way, without measuring, and waits for the end: for several ranks that are timed together.
  void copy(bool is_streaming, int times);
  /// Of one copy, read and written.
  std::int64_t touched_bytes() const { return 2 * out_.bytes(); }
  double gb_per_s() const { return std::max(memcpy_, streaming_); }
  double memcpy_gb_per_s() const { return memcpy_; }

 private:
  std::unique_ptr<Device> device_;
  Memory out_, in_;
  double memcpy_ = 0, streaming_ = 0;
};

}  // namespace zs::bench
