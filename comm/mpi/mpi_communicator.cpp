#include <algorithm>

#include "comm/mpi/mpi_communicator.h"
#include "comm/part_table.h"

namespace zs {
std::unique_ptr<Communicator> MpiCommunicator::split(int color, int key) {
  return recorded_like_this(std::make_unique<MpiCommunicator>(split_off(color, key), options_, arena_), color);
}

void MpiCommunicator::do_all_gather(const OpTag& tag, Buffer shard, Buffer full) {
  const std::int64_t bytes = shard.bytes();
  const auto peers = exchange_.prepare();
  for (int p = 0; p < size(); ++p) peers[p] = {bytes_of(shard), bytes, bytes_of(full) + p * bytes, bytes};
  copy_bytes(bytes_of(full) + rank() * bytes, shard.data, bytes);
  exchange_.run(tag);
}

void MpiCommunicator::do_reduce_scatter(const OpTag& tag, Buffer full, Buffer shard, ReduceInto how, void* scratch) {
  const std::int64_t bytes = shard.elems * size_of(full.dtype);
  const auto peers = exchange_.prepare();
  for (int p = 0; p < size(); ++p) peers[p] = {bytes_of(full) + p * bytes, bytes, nullptr, bytes};
  exchange_.run_reduction(tag, {bytes_of(full) + rank() * bytes, full.dtype, bytes_of(shard), shard.dtype,
                                how == ReduceInto::accumulate, shard.elems, ReduceOp::sum, scratch});
}

void MpiCommunicator::do_all_reduce(const OpTag& tag, Buffer data, ReduceOp op, void* scratch) {
  auto peers = exchange_.prepare();
  if (is_one_round(data)) {
    // One round: everybody reduces everything. What is sent is copied before the reduction writes over it.
    for (int p = 0; p < size(); ++p) peers[p] = {bytes_of(data), data.bytes(), nullptr, data.bytes()};
    return exchange_.run_reduction(
        tag, {bytes_of(data), data.dtype, bytes_of(data), data.dtype, false, data.elems, op, scratch});
  }
  // Two rounds: each rank reduces its share, then hands it to everybody.
  const auto begin = [&](int part) { return message_share_begin(data.elems, part, size()) * size_of(data.dtype); };
  const std::int64_t own_begin = begin(rank()), own_bytes = begin(rank() + 1) - own_begin;
  std::byte* own = bytes_of(data) + own_begin;
  for (int p = 0; p < size(); ++p) peers[p] = {bytes_of(data) + begin(p), begin(p + 1) - begin(p), nullptr, own_bytes};
  exchange_.run_reduction(tag, {own, data.dtype, own, data.dtype, false, own_bytes / size_of(data.dtype), op, scratch});
  peers = exchange_.prepare();
  for (int p = 0; p < size(); ++p) peers[p] = {own, own_bytes, bytes_of(data) + begin(p), begin(p + 1) - begin(p)};
  exchange_.run(tag);
}

void MpiCommunicator::do_broadcast(const OpTag& tag, Buffer data, int root) {
  const auto peers = exchange_.prepare();
  if (rank() == root) {
    for (auto& peer : peers) peer = {bytes_of(data), data.bytes(), nullptr, 0};
  } else {
    peers[root] = {nullptr, 0, bytes_of(data), data.bytes()};
  }
  exchange_.run(tag);
}

void MpiCommunicator::do_all_to_all(const OpTag& tag, Buffer in, Buffer out) {
  const std::int64_t bytes = in.bytes() / size();
  const auto peers = exchange_.prepare();
  for (int p = 0; p < size(); ++p) peers[p] = {bytes_of(in) + p * bytes, bytes, bytes_of(out) + p * bytes, bytes};
  copy_bytes(bytes_of(out) + rank() * bytes, bytes_of(in) + rank() * bytes, bytes);
  exchange_.run(tag);
}

void MpiCommunicator::do_all_to_all_v(const OpTag& tag, const PartTable& parts, Buffer in, Buffer out) {
  const auto sent = [&](int p) { return in.slice(parts.sent_begin(rank(), p), parts.count(rank(), p)); };
  const auto received = [&](int p) { return out.slice(parts.received_begin(rank(), p), parts.count(p, rank())); };
  const auto peers = exchange_.prepare();
  for (int p = 0; p < size(); ++p)
    peers[p] = {bytes_of(sent(p)), sent(p).bytes(), bytes_of(received(p)), received(p).bytes()};
  copy_bytes(received(rank()).data, sent(rank()).data, sent(rank()).bytes());
  exchange_.run(tag);
}

void MpiCommunicator::do_barrier(const OpTag& tag) {
  exchange_.prepare();
  exchange_.run(tag);
}

}  // namespace zs
