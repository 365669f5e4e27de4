#include "comm/direct.h"

#include <algorithm>

#include "comm/fold.h"

namespace zs {
namespace {

constexpr std::int64_t kLine = 64;
/// Of a result that is folded and then handed round: stays in the second-level cache in between.
constexpr std::int64_t kBlockBytes = std::int64_t{128} << 10;
/// What is larger than a second-level cache.
constexpr std::int64_t kStreamedFromBytes = std::int64_t{1} << 20;

std::byte* bytes_of(const Buffer& buffer) { return static_cast<std::byte*>(buffer.data); }
std::int64_t lines(std::int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

/// How a result of so many bytes is best written.
auto copy_for(std::int64_t bytes) { return bytes >= kStreamedFromBytes ? stream_bytes : copy_bytes; }

}  // namespace

std::int64_t PeerMemory::offset_of(const Buffer& buffer) const {
  const auto address = reinterpret_cast<std::uintptr_t>(buffer.data);
  if (buffer.empty()) return 0;  // nobody reads it
  if (address < base || address - base > static_cast<std::uintptr_t>(bytes - buffer.bytes())) return kPrivate;
  return static_cast<std::int64_t>(address - base);
}

DirectCommunicator::DirectCommunicator(int rank, double timeout_s, DirectGroup group)
    : rank_(rank), timeout_s_(timeout_s), group_(std::move(group)), parts_(static_cast<std::size_t>(size())) {}

/// One operation. Private data is staged in two halves, so that one barrier a chunk is enough: nobody comes to chunk k before it has
/// done with chunk k - 1, and so nobody reads the half that chunk k + 1 goes to.
class DirectCommunicator::Meeting {
 public:
  /// Posts `data`, which the others read in `pieces`, waits for all ranks and compares what they are about.
  Meeting(DirectCommunicator& comm, const OpTag& tag, const Buffer& data, const Pieces& pieces)
      : comm_(comm),
        data_(data),
        pieces_(pieces),
        chunk_bytes_(std::max<std::int64_t>(kStagingBytes / 2 / pieces.count / kLine * kLine, kLine)),
        visit_(comm.group_.place, comm.who(tag.text()), *comm.group_.posts[static_cast<std::size_t>(comm.rank_)], post(tag)) {
    for (int r = 1; r < comm_.size(); ++r) {
      if (at(r).tag.hash != at(0).tag.hash) throw ranks_disagree(0, at(0).tag, r, at(r).tag);
    }
    visit_.check_alive();
    for (int r = 0; r < comm_.size(); ++r) has_private_ = has_private_ || at(r).data == PeerMemory::kPrivate;
  }

  bool has_private() const { return has_private_; }
  std::int64_t chunk_bytes() const { return has_private_ ? chunk_bytes_ : std::max(pieces_.bytes, kLine); }

  /// Calls `use(parts, offset, bytes)` for every chunk of piece `piece`: parts[r] is rank r's, and may have no bytes.
  template <class Use>
  void fetch(std::int64_t piece, const Use& use) {
    for (std::int64_t offset = 0, chunk = 0; chunk == 0 || offset < pieces_.bytes; offset += chunk_bytes(), ++chunk) {
      if (chunk > 0) {
        if (is_staged()) stage(offset, half(chunk));
        visit_.step();
      }
      const std::int64_t bytes = std::clamp<std::int64_t>(pieces_.size(piece) - offset, 0, chunk_bytes());
      for (int r = 0; r < comm_.size(); ++r) comm_.parts_[static_cast<std::size_t>(r)] = source(r, piece, offset, half(chunk));
      use(std::span<const std::byte* const>(comm_.parts_), offset, bytes);
    }
  }

  std::byte* data_of(int rank) const { return memory(rank).at(at(rank).data); }
  void finish() { visit_.finish(); }

 private:
  const OpPost& at(int rank) const { return *comm_.group_.posts[static_cast<std::size_t>(rank)]; }
  const PeerMemory& memory(int rank) const { return comm_.group_.memory[static_cast<std::size_t>(rank)]; }
  bool is_staged() const { return staging_ != nullptr; }
  static std::int64_t half(std::int64_t chunk) { return chunk % 2 * (kStagingBytes / 2); }

  /// Runs before anybody may look: the first chunk is staged here.
  OpPost post(const OpTag& tag) {
    const PeerMemory& own = memory(comm_.rank_);
    OpPost made{tag, own.offset_of(data_), 0};
    if (made.data != PeerMemory::kPrivate) return made;
    ZS_CHECK(pieces_.count * chunk_bytes_ <= kStagingBytes / 2, "{} ranks share {} bytes of staging", pieces_.count, kStagingBytes);
    staging_ = comm_.staging();
    made.staging = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(staging_) - own.base);
    stage(0, 0);
    return made;
  }

  void stage(std::int64_t offset, std::int64_t half) const {
    for (std::int64_t p = 0; p < pieces_.count; ++p) {
      const std::int64_t bytes = std::min(chunk_bytes_, pieces_.size(p) - offset);
      const bool is_read = pieces_.count == 1 || p != comm_.rank_;
      if (bytes > 0 && is_read) copy_bytes(staging_ + half + p * chunk_bytes_, bytes_of(data_) + pieces_.begin(p) + offset, bytes);
    }
  }

  const std::byte* source(int rank, std::int64_t piece, std::int64_t offset, std::int64_t half) const {
    if (rank == comm_.rank_) return data_.empty() ? nullptr : bytes_of(data_) + pieces_.begin(piece) + offset;
    if (at(rank).data != PeerMemory::kPrivate) return data_of(rank) + pieces_.begin(piece) + offset;
    return memory(rank).at(at(rank).staging + half + piece * chunk_bytes_);
  }

  DirectCommunicator& comm_;
  Buffer data_;
  Pieces pieces_;
  std::int64_t chunk_bytes_;
  std::byte* staging_ = nullptr;
  bool has_private_ = false;
  Visit visit_;  // the last: its end is the end of everybody's reading
};

void DirectCommunicator::do_all_gather(const OpTag& tag, Buffer shard, Buffer full) {
  const std::int64_t bytes = shard.bytes();
  Meeting meeting(*this, tag, shard, {1, bytes, bytes});
  copy_bytes(bytes_of(full) + rank_ * bytes, shard.data, bytes);
  const auto copy = copy_for(full.bytes());
  meeting.fetch(0, [&](auto parts, std::int64_t offset, std::int64_t count) {
    for (int i = 1; i < size(); ++i) {  // every rank begins with another peer
      const int r = (rank_ + i) % size();
      copy(bytes_of(full) + r * bytes + offset, parts[static_cast<std::size_t>(r)], count);
    }
  });
  meeting.finish();
}

void DirectCommunicator::do_reduce_scatter(const OpTag& tag, Buffer full, Buffer shard, Fold how, void*) {
  const std::int64_t bytes = shard.elems * size_of(full.dtype);
  Meeting meeting(*this, tag, full, {size(), bytes, full.bytes()});
  meeting.fetch(rank_, [&](auto parts, std::int64_t offset, std::int64_t count) {
    const std::int64_t first = offset / size_of(full.dtype);
    std::byte* out = bytes_of(shard) + first * size_of(shard.dtype);
    fold({parts, full.dtype, how == Fold::accumulate ? out : nullptr, out, shard.dtype, count / size_of(full.dtype), ReduceOp::sum});
  });
  meeting.finish();
}

void DirectCommunicator::do_all_reduce(const OpTag& tag, Buffer data, ReduceOp op, void*) {
  const std::int64_t bytes = lines((data.bytes() + size() - 1) / size());
  const Pieces pieces{size(), bytes, data.bytes()};
  const std::int64_t begin = pieces.begin(rank_);
  Meeting meeting(*this, tag, data, pieces);
  // This rank folds its part of everybody's data and hands the result round; nobody else touches that part.
  meeting.fetch(rank_, [&](auto parts, std::int64_t offset, std::int64_t count) {
    std::vector<const std::byte*> block(parts.begin(), parts.end());
    for (std::int64_t done = 0; done < count; done += kBlockBytes) {
      const std::int64_t now = std::min(kBlockBytes, count - done);
      std::byte* out = bytes_of(data) + begin + offset + done;
      fold({block, data.dtype, nullptr, out, data.dtype, now / size_of(data.dtype), op});
      for (auto& part : block) part += now;
      for (int r = 0; r < size() && !meeting.has_private(); ++r) {
        if (r != rank_) copy_bytes(meeting.data_of(r) + begin + offset + done, out, now);
      }
    }
  });
  const bool is_handed_round = !meeting.has_private();
  meeting.finish();
  if (is_handed_round) return;
  Meeting results(*this, tag, {bytes_of(data) + begin, pieces.size(rank_), DType::u8, data.device}, {1, bytes, pieces.size(rank_)});
  results.fetch(0, [&](auto parts, std::int64_t offset, std::int64_t) {
    for (int r = 0; r < size(); ++r) {
      const std::int64_t length = std::clamp<std::int64_t>(pieces.size(r) - offset, 0, results.chunk_bytes());
      if (r != rank_) copy_bytes(bytes_of(data) + pieces.begin(r) + offset, parts[static_cast<std::size_t>(r)], length);
    }
  });
  results.finish();
}

void DirectCommunicator::do_broadcast(const OpTag& tag, Buffer data, int root) {
  const Buffer posted = rank_ == root ? data : Buffer{};
  Meeting meeting(*this, tag, posted, {1, data.bytes(), data.bytes()});
  const auto copy = copy_for(data.bytes());
  meeting.fetch(0, [&](auto parts, std::int64_t offset, std::int64_t count) {
    if (rank_ != root) copy(bytes_of(data) + offset, parts[static_cast<std::size_t>(root)], count);
  });
  meeting.finish();
}

void DirectCommunicator::do_all_to_all(const OpTag& tag, Buffer in, Buffer out) {
  const std::int64_t bytes = in.bytes() / size();
  Meeting meeting(*this, tag, in, {size(), bytes, in.bytes()});
  const auto copy = copy_for(out.bytes());
  meeting.fetch(rank_, [&](auto parts, std::int64_t offset, std::int64_t count) {
    for (int i = 0; i < size(); ++i) {
      const int r = (rank_ + i) % size();
      copy(bytes_of(out) + r * bytes + offset, parts[static_cast<std::size_t>(r)], count);
    }
  });
  meeting.finish();
}

void DirectCommunicator::do_barrier(const OpTag& tag) { Meeting(*this, tag, {}, {1, 0, 0}).finish(); }

}  // namespace zs
