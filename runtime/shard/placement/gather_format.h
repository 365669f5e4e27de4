#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/kernels.h"

namespace zs {

/// Format in which a unit's parameters travel when they are gathered from the master shards: each rank encodes its own,
/// bytes are gathered, and every rank decodes all of them, its own too, so that all have the same bits. The master
/// weights stay exact, and so are what an evaluation in full precision and an UnshardScope gather. Immutable; alike on
/// every rank, which compare its fingerprint. Outlives the runtimes that have it. One of a user's own derives from
/// this.
class GatherFormat {
 public:
  virtual ~GatherFormat() = default;

  /// u8 of one rank's shard of so many elements, f32 or bf16: at least 1 of at least 1.
  virtual std::int64_t encoded_bytes(std::int64_t elems, DType dtype) const = 0;
  /// Arguments of the next two functions: on the unshard stream, within an operation that has declared these buffers.
  struct Work {
    ExecContext& exec;
    const KernelTable& kernels;
  };
  /// encoded (encoded_bytes) := shard (n), every byte of it
  virtual void encode(const Work& work, Buffer encoded, Buffer shard) const = 0;
  /// full (parts * n) := encoded (parts * encoded_bytes), one rank's after the other
  virtual void decode(const Work& work, Buffer full, Buffer encoded, int parts) const = 0;
  /// "int8": for error lines.
  virtual std::string_view name() const = 0;
  /// Formats that do not decode alike have different ones; not 0.
  virtual std::uint64_t fingerprint() const;
};

/// Integers of 8 bits with an f32 scale for every 256 (runtime/base/int8_blocks.h).
const GatherFormat* int8_format();
/// e4m3 (kernels/fp8.h) with an f32 scale for every 256.
const GatherFormat* fp8_format();
/// "int8", "fp8"; null for "none".
const GatherFormat* gather_format_named(std::string_view name);

}  // namespace zs
