#pragma once

#include <array>

#include "runtime/device/allocator.h"

namespace zs {

class Device;

/// Bytes that a stream takes of its device for an op that asks for `bytes`: on the compute stream of a GPU the kernels'
/// workspace lies after them (ExecContext::workspace).
std::int64_t scratch_block_bytes(DeviceKind device, StreamRole role, std::int64_t bytes);

/// Bytes of scratch memory by stream.
using ScratchBytes = std::array<std::int64_t, kStreamRoles>;

/// Working memory of a device's streams: one counted block for each, as large as the largest that an op of the stream
/// has declared (OpInfo::scratch_bytes, or pinned_bytes). It grows in the first step and stays. Owned by the device,
/// used by its host thread.
class Scratch {
 public:
  /// `label`: what the blocks are counted as.
  explicit Scratch(Pool& pool, std::string label = "scratch") : pool_(pool), label_(std::move(label)) {}

  /// Reserves at least `bytes` for the op that is enqueued next on `stream`; empty when that needs none.
  Buffer reserve(Stream& stream, std::int64_t bytes);
  /// Reserves so much for each stream of the device, before it is needed.
  void reserve(Device& device, const ScratchBytes& bytes);
  ScratchBytes bytes() const;
  /// Gives the blocks back: while the streams still live.
  void drop() noexcept;

 private:
  Pool& pool_;
  const std::string label_;
  std::array<Memory, kStreamRoles> blocks_;
};

}  // namespace zs
