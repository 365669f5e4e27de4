#include "comm/direct/direct.h"

#include <algorithm>
#include <numeric>

#include "comm/direct/direct_operation.h"

namespace zs {
namespace {

/// Block of a result that is reduced and then handed round: stays in the second-level cache in between.
constexpr std::int64_t kBlockBytes = std::int64_t{128} << 10;

std::int64_t lines(std::int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

}  // namespace

std::int64_t PeerMemory::offset_of(const Buffer& buffer) const {
  const auto address = reinterpret_cast<std::uintptr_t>(buffer.data);
  if (buffer.empty()) return 0;  // nobody reads it
  if (address < base || address - base > static_cast<std::uintptr_t>(bytes - buffer.bytes())) return kPrivate;
  return static_cast<std::int64_t>(address - base);
}

DirectCommunicator::DirectCommunicator(int rank, double timeout_s, DirectGroup group)
    : rank_(rank), timeout_s_(timeout_s), group_(std::move(group)), parts_(static_cast<std::size_t>(size())) {}

void DirectCommunicator::do_all_gather(const OpTag& tag, Buffer shard, Buffer full) {
  const std::int64_t bytes = shard.bytes();
  DirectOperation operation(*this, tag, shard, {1, bytes, bytes});
  copy_bytes(bytes_of(full) + rank_ * bytes, shard.data, bytes);
  const auto copy = copy_for(full.bytes());
  operation.fetch(0, [&](auto parts, std::int64_t offset, std::int64_t count) {
    for (int i = 1; i < size(); ++i) {  // every rank begins with another peer
      const int r = (rank_ + i) % size();
      copy(bytes_of(full) + r * bytes + offset, parts[static_cast<std::size_t>(r)], count);
    }
  });
  operation.finish();
}

void DirectCommunicator::do_reduce_scatter(const OpTag& tag, Buffer full, Buffer shard, ReduceInto how, void*) {
  const std::int64_t bytes = shard.elems * size_of(full.dtype);
  DirectOperation operation(*this, tag, full, {size(), bytes, full.bytes(), rank_});
  operation.fetch(rank_, [&](auto parts, std::int64_t offset, std::int64_t count) {
    const std::int64_t first = offset / size_of(full.dtype);
    std::byte* out = bytes_of(shard) + first * size_of(shard.dtype);
    ordered_reduce({parts, full.dtype, how == ReduceInto::accumulate ? out : nullptr, out, shard.dtype,
                    count / size_of(full.dtype), ReduceOp::sum});
  });
  operation.finish();
}

void DirectCommunicator::do_all_reduce(const OpTag& tag, Buffer data, ReduceOp op, void*) {
  const std::int64_t bytes = lines((data.bytes() + size() - 1) / size());
  const Pieces pieces{size(), bytes, data.bytes(), rank_};
  const std::int64_t begin = pieces.begin(rank_);
  DirectOperation operation(*this, tag, data, pieces);
  // This rank reduces its part of everybody's data and hands the result round; nobody else touches that part.
  operation.fetch(rank_, [&](auto parts, std::int64_t offset, std::int64_t count) {
    std::vector<const std::byte*> block(parts.begin(), parts.end());
    for (std::int64_t done = 0; done < count; done += kBlockBytes) {
      const std::int64_t now = std::min(kBlockBytes, count - done);
      std::byte* out = bytes_of(data) + begin + offset + done;
      ordered_reduce({block, data.dtype, nullptr, out, data.dtype, now / size_of(data.dtype), op});
      for (auto& part : block) part += now;
      for (int r = 0; r < size() && !operation.has_private(); ++r) {
        if (r != rank_) copy_bytes(operation.data_of(r) + begin + offset + done, out, now);
      }
    }
  });
  const bool is_handed_round = !operation.has_private();
  operation.finish();
  if (is_handed_round) return;
  DirectOperation results(*this, tag, {bytes_of(data) + begin, pieces.size(rank_), DType::u8, data.device},
                          {1, bytes, pieces.size(rank_)});
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
  DirectOperation operation(*this, tag, posted, {1, data.bytes(), data.bytes()});
  const auto copy = copy_for(data.bytes());
  operation.fetch(0, [&](auto parts, std::int64_t offset, std::int64_t count) {
    if (rank_ != root) copy(bytes_of(data) + offset, parts[static_cast<std::size_t>(root)], count);
  });
  operation.finish();
}

void DirectCommunicator::do_all_to_all(const OpTag& tag, Buffer in, Buffer out) {
  const std::int64_t bytes = in.bytes() / size();
  DirectOperation operation(*this, tag, in, {size(), bytes, in.bytes(), rank_});
  const auto copy = copy_for(out.bytes());
  operation.fetch(rank_, [&](auto parts, std::int64_t offset, std::int64_t count) {
    for (int i = 0; i < size(); ++i) {
      const int r = (rank_ + i) % size();
      copy(bytes_of(out) + r * bytes + offset, parts[static_cast<std::size_t>(r)], count);
    }
  });
  operation.finish();
}

void DirectCommunicator::do_all_to_all_v(const OpTag& tag, const PartTable& parts, Buffer in, Buffer out) {
  std::vector<int> everybody(static_cast<std::size_t>(size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  DirectOperation operation(*this, tag, in, {1, parts.most_sent() * size_of(in.dtype), in.bytes()});
  fetch_parts(operation, parts, everybody, rank_, out);
  operation.finish();
}

void DirectCommunicator::do_barrier(const OpTag& tag) { DirectOperation(*this, tag, {}, {1, 0, 0}).finish(); }

}  // namespace zs
