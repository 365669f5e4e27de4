#pragma once

#include <algorithm>
#include <span>

#include "comm/direct/direct.h"
#include "comm/ordered_reduce.h"
#include "comm/part_table.h"

namespace zs {

constexpr std::int64_t kLine = 64;  // bytes of a cache line

/// Pieces that the data which a rank posts is cut into: `count` of `bytes`; the last may be shorter, and there may be
/// empty ones after it.
struct Pieces {
  std::int64_t count, bytes, total_bytes;
  int own = -1;  ///< among several, the one that no other rank fetches from this rank

  std::int64_t begin(std::int64_t piece) const { return std::min(piece * bytes, total_bytes); }
  std::int64_t size(std::int64_t piece) const { return begin(piece + 1) - begin(piece); }
};

/// One operation of a DirectCommunicator, on the stack of its stream's thread. Private data is staged in two halves, so
/// that one barrier a chunk is enough: nobody comes to chunk k before it has done with chunk k - 1, and so nobody reads
/// the half that chunk k + 1 goes to.
class DirectOperation {
 public:
  /// Posts `data`, which the others read in `pieces` from now on, waits for all ranks and compares what they are about.
  DirectOperation(DirectCommunicator& comm, const OpTag& tag, const Buffer& data, const Pieces& pieces)
      : comm_(comm),
        data_(data),
        pieces_(pieces),
        chunk_bytes_(std::max<std::int64_t>(kStagingBytes / 2 / pieces.count / kLine * kLine, kLine)),
        guard_(comm.group_.place, comm.who(tag.text()), *comm.group_.posts[static_cast<std::size_t>(comm.rank_)],
               post(tag)) {
    for (int r = 1; r < comm_.size(); ++r) {
      if (at(r).tag.hash != at(0).tag.hash) throw ranks_disagree(0, at(0).tag, r, at(r).tag);
    }
    guard_.check_alive();
    for (int r = 0; r < comm_.size(); ++r) has_private_ = has_private_ || at(r).data == PeerMemory::kPrivate;
  }

  bool has_private() const { return has_private_; }
  std::int64_t chunk_bytes() const { return has_private_ ? chunk_bytes_ : std::max(pieces_.bytes, kLine); }

  /// Calls `use(offset, bytes)` for every chunk of the range of each piece that begins at `from` and ends before `to`;
  /// once where it is empty. All ranks ask for the same ranges. Within the call `part` is to be had of that chunk.
  template <class Use>
  void chunks(std::int64_t from, std::int64_t to, const Use& use) {
    for (std::int64_t offset = from; offset == from || offset < to; offset += chunk_bytes()) {
      if (chunk_ > 0 && has_private_) {
        if (is_staged()) stage(offset);
        guard_.step();
      }
      use(offset, std::clamp<std::int64_t>(to - offset, 0, chunk_bytes()));
      ++chunk_;
    }
  }
  /// The chunk of a piece of `rank`'s data.
  const std::byte* part(int rank, std::int64_t piece, std::int64_t offset) const {
    if (rank == comm_.rank_) return data_.empty() ? nullptr : bytes_of(data_) + pieces_.begin(piece) + offset;
    if (at(rank).data != PeerMemory::kPrivate) return data_of(rank) + pieces_.begin(piece) + offset;
    return memory(rank).at(at(rank).staging + half() + piece * chunk_bytes_);
  }

  /// Calls `use(parts, offset, bytes)` for every chunk of piece `piece`: parts[r] is rank r's, and may have no bytes.
  template <class Use>
  void fetch(std::int64_t piece, const Use& use) {
    chunks(0, pieces_.bytes, [&](std::int64_t offset, std::int64_t bytes) {
      for (int r = 0; r < comm_.size(); ++r) comm_.parts_[static_cast<std::size_t>(r)] = part(r, piece, offset);
      use(std::span<const std::byte* const>(comm_.parts_), offset,
          std::clamp<std::int64_t>(pieces_.size(piece) - offset, 0, bytes));
    });
  }

  std::byte* data_of(int rank) const { return memory(rank).at(at(rank).data); }
  void finish() { guard_.finish(); }

 private:
  static constexpr std::int64_t kStagingBytes = DirectCommunicator::kStagingBytes;

  const OpPost& at(int rank) const { return *comm_.group_.posts[static_cast<std::size_t>(rank)]; }
  const PeerMemory& memory(int rank) const { return comm_.group_.memory[static_cast<std::size_t>(rank)]; }
  bool is_staged() const { return staging_ != nullptr; }
  std::int64_t half() const { return chunk_ % 2 * (kStagingBytes / 2); }

  /// Runs before anybody may look: the first chunk is staged here.
  OpPost post(const OpTag& tag) {
    const PeerMemory& own = memory(comm_.rank_);
    OpPost made{tag, own.offset_of(data_), 0};
    if (made.data != PeerMemory::kPrivate) return made;
    ZS_CHECK(pieces_.count * chunk_bytes_ <= kStagingBytes / 2, "{} ranks share {} bytes of staging", pieces_.count,
             kStagingBytes);
    staging_ = comm_.staging();
    made.staging = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(staging_) - own.base);
    stage(0);
    return made;
  }

  void stage(std::int64_t offset) const {
    for (std::int64_t p = 0; p < pieces_.count; ++p) {
      const std::int64_t bytes = std::min(chunk_bytes_, pieces_.size(p) - offset);
      if (bytes > 0 && p != pieces_.own)
        copy_bytes(staging_ + half() + p * chunk_bytes_, bytes_of(data_) + pieces_.begin(p) + offset, bytes);
    }
  }

  DirectCommunicator& comm_;
  Buffer data_;
  Pieces pieces_;
  std::int64_t chunk_bytes_, chunk_ = 0;
  std::byte* staging_ = nullptr;
  bool has_private_ = false;
  RendezvousGuard guard_;  // the last: its end is the end of everybody's reading
};

/// out := what each rank of this rank's memory has for `self`. The group's ranks are `names` of the table's, in this
/// order. One piece of table.most_sent() elements; private data goes by as a whole, and each rank takes its part.
inline void fetch_parts(DirectOperation& operation, const PartTable& table, std::span<const int> names, int self,
                        const Buffer& out) {
  const std::int64_t elem_bytes = size_of(out.dtype);
  const auto copy = copy_for(out.bytes());
  operation.chunks(0, table.most_sent() * elem_bytes, [&](std::int64_t offset, std::int64_t bytes) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      // Every rank begins with another peer.
      const std::size_t place = (i + static_cast<std::size_t>(self)) % names.size();
      const std::int64_t begin = table.sent_begin(names[place], self) * elem_bytes;
      const std::int64_t from = std::max(begin, offset);
      const std::int64_t to = std::min(begin + table.count(names[place], self) * elem_bytes, offset + bytes);
      if (from >= to) continue;
      std::byte* target =
          static_cast<std::byte*>(out.data) + table.received_begin(self, names[place]) * elem_bytes + from - begin;
      copy(target, operation.part(static_cast<int>(place), 0, offset) + (from - offset), to - from);
    }
  });
}

}  // namespace zs
