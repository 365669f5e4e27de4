#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/kernels.h"

namespace zs {

/// Format in which a frozen unit holds its weights, and in which they are gathered: blocks of elements that share a
/// scale. Each parameter begins with a block, and so does each shard, so that any number of ranks holds the same blocks
/// and decodes the same bits. The host encodes, once, when weights are drawn or read. Immutable; alike on every rank.
/// Outlives the runtimes that have it. One of a user's own is another of these.
struct FrozenFormat {
  std::string_view name;     ///< "nf4": for error lines
  std::int64_t block_elems;  ///< number of elements of a block
  /// u8 of one rank's shard of so many elements, a multiple of block_elems; a multiple of 64
  std::int64_t (*bytes)(std::int64_t elems);
  /// encoded (bytes(elems)), every byte of it := elements (elems), both in the host's memory
  void (*encode)(std::byte* encoded, const float* elements, std::int64_t elems);
  /// elements (slices, n), f32 or bf16 := encoded, in the host's memory too
  void (*decode_on_host)(const Buffer& elements, const std::byte* encoded, int slices);
  /// full (shards * n), f32 or bf16 := encoded (shards * bytes(n)), one rank's after the other
  void (*KernelTable::*decode)(ExecContext& exec, Buffer full, Buffer encoded, int shards);

  /// Rounds so many elements, which begin with a block, to what is left of them.
  void round(float* elements, std::int64_t elems) const;
  std::uint64_t fingerprint() const;  ///< formats of another name have another one; not 0
};

/// Integers of 8 bits with an f32 scale for every 256 (runtime/base/int8_blocks.h).
const FrozenFormat* frozen_int8();
/// NF4, as bitsandbytes has it, with an f32 magnitude for every 64 (runtime/base/nf4_blocks.h).
const FrozenFormat* frozen_nf4();
/// "int8", "nf4"; null for "none".
const FrozenFormat* frozen_format_named(std::string_view name);

}  // namespace zs
