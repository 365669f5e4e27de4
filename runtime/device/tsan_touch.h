#pragma once

#include "runtime/device/stream.h"

namespace zs {

/// Touches every declared range in instrumented code, so that TSan sees accesses that happen inside libraries it does
/// not instrument: reads are read, writes are read and written back. Every byte of small ranges; of larger ones the
/// first byte, each 64-byte boundary and the last byte, which suffices because layouts cut at 64 bytes.
inline void touch_declared(const OpInfo& info) {
  const auto touch = [](const Buffer& buffer, bool write) {
    if (buffer.bytes() <= 0 || buffer.device != DeviceKind::cpu) return;
    volatile unsigned char* const first = static_cast<unsigned char*>(buffer.data);
    volatile unsigned char* const last = first + buffer.bytes() - 1;
    const auto one = [write](volatile unsigned char* at) {
      const unsigned char value = *at;
      if (write) *at = value;
    };
    const bool small = buffer.bytes() <= 1024;
    for (volatile unsigned char* at = first; at <= last;) {
      one(at);
      at += small ? 1 : 64 - static_cast<std::ptrdiff_t>(reinterpret_cast<std::uintptr_t>(at) % 64);
    }
    one(last);
  };
  for (const Buffer& buffer : info.reads) touch(buffer, false);
  for (const Buffer& buffer : info.writes) touch(buffer, true);
}

}  // namespace zs
