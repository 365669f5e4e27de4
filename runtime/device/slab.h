#pragma once

#include <map>

#include "runtime/device/stream.h"

namespace zs {

/// Alignment of blocks of device memory, in bytes; large ones begin with a page.
constexpr std::int64_t kBlockAlignment = 64, kPageAlignment = 4096, kPageAlignedFrom = std::int64_t{1} << 20;

/// One range of memory from which a Pool cuts blocks of any size: always the lowest addresses where a block fits.
/// Neighbours that are free join, so that what is left between the blocks stays usable; places depend on the sequence
/// of sizes alone, so that the meta device finds out how long a range a run needs. Each free piece knows its last use:
/// a stream that takes it over waits for that, and for no other. Does not own the memory; one host thread uses it.
class Slab {
 public:
  Slab(void* address, std::int64_t bytes);

  /// A block for `stream`, which waits for the last uses of its pieces; null when there is no room. `bytes` is a
  /// multiple of 64.
  void* take(std::int64_t bytes, Stream& stream);
  void reclaim(void* address, std::int64_t bytes, Stream& last_user, const Event& last_use);

  bool contains(const void* address) const;
  /// The length that would have been enough so far.
  std::int64_t high_water_bytes() const { return high_water_; }

 private:
  struct Piece {
    std::int64_t bytes = 0;
    Stream* last_user = nullptr;  // null: nobody yet
    Event last_use;
  };
  using Pieces = std::map<std::int64_t, Piece>;

  std::int64_t first_fit(std::int64_t bytes) const;
  void carve(std::int64_t begin, std::int64_t bytes, Stream& stream);
  Pieces::iterator join(Pieces::iterator left, Pieces::iterator right);

  std::byte* address_;
  Pieces free_;  // by offset
  std::int64_t high_water_ = 0;
};

}  // namespace zs
