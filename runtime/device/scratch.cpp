#include "runtime/device/device.h"

namespace zs {

std::int64_t scratch_block_bytes(DeviceKind device, StreamRole role, std::int64_t bytes) {
  if (device != DeviceKind::cuda || role != StreamRole::compute) return bytes;
  return Pool::rounded(bytes) + ExecContext::kWorkspaceBytes;
}

Buffer Scratch::reserve(Stream& stream, std::int64_t bytes) {
  ZS_CHECK(bytes >= 0, "{} bytes of scratch on stream '{}'", bytes, name_of(stream.role()));
  if (bytes == 0) return {};
  Memory& block = blocks_[static_cast<std::size_t>(stream.role())];
  if (block.bytes() < bytes) {
    block.reset();
    const MemoryOwner owner(pool_.counter(), name_of(stream.role()));
    block = pool_.acquire(bytes, stream, label_);
  }
  return block.buffer(DType::u8, bytes);
}

void Scratch::reserve(Device& device, const ScratchBytes& bytes) {
  for (std::size_t role = 0; role < bytes.size(); ++role)
    reserve(device.stream(static_cast<StreamRole>(role)), bytes[role]);
}

ScratchBytes Scratch::bytes() const {
  ScratchBytes bytes{};
  for (std::size_t role = 0; role < bytes.size(); ++role) bytes[role] = blocks_[role].bytes();
  return bytes;
}

void Scratch::drop() noexcept {
  for (Memory& block : blocks_) block.reset();
}

}  // namespace zs
