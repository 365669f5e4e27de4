#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace zs {

/// A secret of 128 bits.
struct SipKey {
  std::uint64_t first = 0, second = 0;
};

/// SipHash-2-4 (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012): who does not have the key can neither
/// compute nor guess the hash of a message, whatever others have been seen. On little-endian machines the published
/// values.
std::uint64_t sip_hash(const SipKey& key, std::span<const std::byte> message) noexcept;

}  // namespace zs
