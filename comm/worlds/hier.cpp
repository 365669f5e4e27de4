#include "comm/worlds/hier.h"

#include <algorithm>

#include "comm/direct/direct_operation.h"

namespace zs {
namespace {

std::int64_t rounded(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

/// A reduction of `data`, of which rank r gets piece r.
struct HierCommunicator::Sum {
  Buffer data;
  std::int64_t piece_bytes;
  Buffer out;  ///< this rank's piece of the result
  bool accumulate;
  ReduceOp op;
  std::byte* scratch;
  CommDType comm_dtype = CommDType::exact;  ///< between hosts
  std::int64_t chunk_bytes = 0;             ///< chunk of sums

  DType dtype() const { return carried(data.dtype); }
  std::int64_t piece_elems() const { return piece_bytes / size_of(data.dtype); }
  std::byte* slot(int index) const { return scratch + index * chunk_bytes; }
  /// Elements of the chunk that begins at `from` and has at most `elems` elements, as far as piece `rank` has them.
  std::int64_t elems_of(int rank, std::int64_t from, std::int64_t elems) const {
    const std::int64_t begin = std::min(rank * piece_elems() + from, data.elems);
    const std::int64_t end = std::min((rank + 1) * piece_elems(), data.elems);
    return std::clamp<std::int64_t>(end - begin, 0, elems);
  }
};

HierCommunicator::HierCommunicator(MPI_Comm comm, HostMap map, std::unique_ptr<ShmCommunicator> host,
                                   const WorldOptions& options, std::shared_ptr<Allocator> arena)
    : MpiCommunicator(comm, options, std::move(arena)), map_(std::move(map)), host_(std::move(host)) {
  host_->call_ranks({mates().begin(), mates().end()});
  exchange().watch(
      [this](int other) { return map_.host_of(other) == own_host() && host_->has_died(map_.place_of(other)); });
}

std::unique_ptr<Communicator> HierCommunicator::split(int color, int key) {
  const MPI_Comm part = split_off(color, key);
  std::vector<int> hosts;
  for (const int rank : exchange().ranks_of(part)) hosts.push_back(map_.host_of(rank));
  return recorded_like_this(make_group(part, hosts, host_->split_off(color, key), options(), shared_arena()), color);
}

std::int64_t HierCommunicator::reduce_scatter_scratch_bytes(const Buffer& full, const Buffer& shard,
                                                            ReduceInto into) const {
  if (options().sums_in_rank_order) return MpiCommunicator::reduce_scatter_scratch_bytes(full, shard, into);
  return hier_reduce_scatter_scratch_bytes(map_, full);
}

std::int64_t HierCommunicator::packed_sum_scratch_bytes(const Buffer& full) const {
  if (options().sums_in_rank_order) return MpiCommunicator::packed_sum_scratch_bytes(full);
  return hier_packed_sum_scratch_bytes(map_, full);
}

std::int64_t HierCommunicator::all_reduce_scratch_bytes(const Buffer& data) const {
  if (options().sums_in_rank_order) return MpiCommunicator::all_reduce_scratch_bytes(data);
  return hier_all_reduce_scratch_bytes(map_, data);
}

void HierCommunicator::do_all_gather(const OpTag& tag, Buffer shard, Buffer full) {
  copy_bytes(bytes_of(full) + rank() * shard.bytes(), shard.data, shard.bytes());
  gather(tag, full, shard.bytes());
}

/// Every rank has its piece of `full` and gets the others'.
void HierCommunicator::gather(const OpTag& tag, Buffer full, std::int64_t piece_bytes) {
  Pieces pieces{size(), piece_bytes, full.bytes()};
  const auto at = [&](int rank) { return bytes_of(full) + pieces.begin(rank); };
  const auto peers = exchange().prepare();
  for (int host = 0; host < map_.hosts(); ++host) {
    if (host == own_host()) continue;
    auto& partner = peers[map_.partner(host, rank())];
    partner.send = at(rank());
    partner.send_bytes = pieces.size(rank());
  }
  for (const int served : map_.served_by(rank())) {
    peers[served].receive = at(served);
    peers[served].receive_bytes = pieces.size(served);
  }
  exchange().run(tag);
  if (full.empty()) return;
  DirectOperation operation(*host_, tag, full, pieces);
  const auto copy = copy_for(full.bytes());
  operation.chunks(0, piece_bytes, [&](std::int64_t offset, std::int64_t bytes) {
    const auto take = [&](int place, int piece) {
      const std::int64_t count = std::clamp<std::int64_t>(pieces.size(piece) - offset, 0, bytes);
      copy(at(piece) + offset, operation.part(place, piece, offset), count);
    };
    for (int i = 1; i < host_->size(); ++i) {  // every rank begins with another peer
      const int place = (host_->rank() + i) % host_->size(), mate = mates()[static_cast<std::size_t>(place)];
      take(place, mate);
      for (const int served : map_.served_by(mate)) take(place, served);
    }
  });
  operation.finish();
}

void HierCommunicator::do_reduce_scatter(const OpTag& tag, Buffer full, Buffer shard, ReduceInto how, void* scratch) {
  if (options().sums_in_rank_order) return MpiCommunicator::do_reduce_scatter(tag, full, shard, how, scratch);
  reduce(tag, {full, full.bytes() / size(), shard, how == ReduceInto::accumulate, ReduceOp::sum,
               static_cast<std::byte*>(scratch)});
}

void HierCommunicator::do_packed_sum(const OpTag& tag, Buffer full, Buffer shard, ReduceInto how, void* scratch) {
  if (options().sums_in_rank_order) return MpiCommunicator::do_packed_sum(tag, full, shard, how, scratch);
  reduce(tag, {full, full.bytes() / size(), shard, how == ReduceInto::accumulate, ReduceOp::sum,
               static_cast<std::byte*>(scratch), CommDType::int8});
}

void HierCommunicator::do_all_reduce(const OpTag& tag, Buffer data, ReduceOp op, void* scratch) {
  if (options().sums_in_rank_order) return MpiCommunicator::do_all_reduce(tag, data, op, scratch);
  if (is_one_round(data)) return reduce_in_one_round(tag, data, op, static_cast<std::byte*>(scratch));
  const std::int64_t bytes = hier_part_bytes(data, size()), elems = bytes / size_of(data.dtype);
  const std::int64_t begin = std::min(rank() * elems, data.elems), end = std::min(begin + elems, data.elems);
  reduce(tag, {data, bytes, data.slice(begin, end - begin), false, op, static_cast<std::byte*>(scratch)});
  gather(tag, data, bytes);
}

void HierCommunicator::reduce(const OpTag& tag, const Sum& wanted) {
  exchange().prepare();
  exchange().run(tag);  // nobody looks at anybody's data before all agree what it is
  if (wanted.data.empty()) return;
  Sum sum = wanted;
  const std::int64_t elem_bytes = size_of(sum.data.dtype),
                     chunk = hier_chunk_elems(map_, sum.piece_elems(), sum.data.dtype);
  sum.chunk_bytes = chunk * size_of(sum.dtype());
  DirectOperation operation(*host_, tag, sum.data, {size(), sum.piece_bytes, sum.data.bytes()});
  std::vector<const std::byte*> parts(static_cast<std::size_t>(host_->size()));
  for (std::int64_t from = 0; from < sum.piece_elems(); from += chunk) {
    const std::int64_t count = std::min(chunk, sum.piece_elems() - from);
    operation.chunks(from * elem_bytes, (from + count) * elem_bytes, [&](std::int64_t offset, std::int64_t bytes) {
      const std::int64_t at = offset / elem_bytes;
      const auto sum_up = [&](int piece, int slot) {
        const std::int64_t elems = sum.elems_of(piece, at, bytes / elem_bytes);
        for (std::size_t place = 0; place < parts.size(); ++place)
          parts[place] = operation.part(static_cast<int>(place), piece, offset);
        std::byte* out = sum.slot(slot) + (at - from) * size_of(sum.dtype());
        ordered_reduce({parts, sum.data.dtype, nullptr, out, sum.dtype(), elems, sum.op});
      };
      sum_up(rank(), 0);
      for (int slot = 1; const int served : map_.served_by(rank())) sum_up(served, slot++);
    });
    sum.comm_dtype == CommDType::int8 ? exchange_packed(tag, sum, from, count) : exchange_sums(tag, sum, from, count);
    add_up_hosts(sum, from, count);
  }
  operation.finish();
}

/// Sends the sums of a chunk to the ranks whose pieces they are of, and gets those of this rank's own: into the slots
/// after the sent ones, by host.
void HierCommunicator::exchange_sums(const OpTag& tag, const Sum& sum, std::int64_t from, std::int64_t elems) {
  const std::int64_t own_elems = sum.elems_of(rank(), from, elems), bytes = size_of(sum.dtype());
  const auto peers = exchange().prepare();
  for (int slot = 1; const int served : map_.served_by(rank())) {
    peers[served].send = sum.slot(slot++);
    peers[served].send_bytes = sum.elems_of(served, from, elems) * bytes;
  }
  for (int host = 0, slot = 1 + map_.most_served(); host < map_.hosts(); ++host) {
    if (host == own_host()) continue;
    auto& partner = peers[map_.partner(host, rank())];
    partner.receive = sum.slot(slot++);
    partner.receive_bytes = own_elems * bytes;
  }
  exchange().run(tag);
}

/// Exchanges sums packed on the way, in scratch after the slots.
void HierCommunicator::exchange_packed(const OpTag& tag, const Sum& sum, std::int64_t from, std::int64_t elems) {
  const std::int64_t own_elems = sum.elems_of(rank(), from, elems),
                     room = packed_bytes(sum.chunk_bytes / size_of(sum.dtype()));
  const auto packed = [&](int slot) { return sum.slot(hier_slots(map_)) + (slot - 1) * room; };
  const auto sums = [&](int slot, std::int64_t n) { return Buffer{sum.slot(slot), n, sum.dtype(), sum.data.device}; };
  const auto peers = exchange().prepare();
  for (int slot = 1; const int served : map_.served_by(rank())) {
    const std::int64_t n = sum.elems_of(served, from, elems);
    pack_int8(packed(slot), sums(slot, n));
    peers[served].send = packed(slot++);
    peers[served].send_bytes = packed_bytes(n);
  }
  for (int host = 0, slot = 1 + map_.most_served(); host < map_.hosts(); ++host) {
    if (host == own_host()) continue;
    auto& partner = peers[map_.partner(host, rank())];
    partner.receive = packed(slot++);
    partner.receive_bytes = packed_bytes(own_elems);
  }
  exchange().run(tag);
  for (int slot = 1 + map_.most_served(); slot < hier_slots(map_); ++slot)
    unpack_int8(sums(slot, own_elems), packed(slot));
}

void HierCommunicator::add_up_hosts(const Sum& sum, std::int64_t from, std::int64_t elems) {
  std::vector<const std::byte*> parts;  // by host
  for (int host = 0, slot = 1 + map_.most_served(); host < map_.hosts(); ++host) {
    parts.push_back(sum.slot(host == own_host() ? 0 : slot++));
  }
  std::byte* out = bytes_of(sum.out) + from * size_of(sum.out.dtype);
  ordered_reduce({parts, sum.dtype(), sum.accumulate ? out : nullptr, out, sum.out.dtype,
                  sum.elems_of(rank(), from, elems), sum.op});
}

/// Small data, where the time of a round is more than that of its bytes: everybody gets everything, and adds it up as
/// above.
void HierCommunicator::reduce_in_one_round(const OpTag& tag, Buffer data, ReduceOp op, std::byte* scratch) {
  const std::int64_t room = rounded(data.bytes(), kLine);
  const DType sum_dtype = carried(data.dtype);
  const auto theirs = [&](int rank) { return scratch + rank * room; };
  const auto peers = exchange().prepare();
  for (int p = 0; p < size(); ++p) peers[p] = {bytes_of(data), data.bytes(), theirs(p), data.bytes()};
  copy_bytes(theirs(rank()), data.data, data.bytes());
  exchange().run(tag);
  std::vector<const std::byte*> sums;
  for (int host = 0; host < map_.hosts(); ++host) {
    std::byte* sum = theirs(size()) + host * rounded(data.elems * size_of(sum_dtype), kLine);
    std::vector<const std::byte*> parts;
    for (const int mate : map_.ranks_on(host)) parts.push_back(theirs(mate));
    ordered_reduce({parts, data.dtype, nullptr, sum, sum_dtype, data.elems, op});
    sums.push_back(sum);
  }
  ordered_reduce({sums, sum_dtype, nullptr, bytes_of(data), data.dtype, data.elems, op});
}

void HierCommunicator::do_broadcast(const OpTag& tag, Buffer data, int root) {
  // The root gives it to one rank of each other host.
  const int giver = own_host() == map_.host_of(root) ? root : map_.partner(own_host(), root);
  const auto peers = exchange().prepare();
  for (int host = 0; host < map_.hosts() && rank() == root; ++host) {
    if (host != own_host()) peers[map_.partner(host, root)] = {bytes_of(data), data.bytes(), nullptr, 0};
  }
  if (rank() == giver && rank() != root) peers[root] = {nullptr, 0, bytes_of(data), data.bytes()};
  exchange().run(tag);
  if (data.empty()) return;
  DirectOperation operation(*host_, tag, rank() == giver ? data : Buffer{}, {1, data.bytes(), data.bytes()});
  const auto copy = copy_for(data.bytes());
  operation.chunks(0, data.bytes(), [&](std::int64_t offset, std::int64_t bytes) {
    if (rank() != giver) copy(bytes_of(data) + offset, operation.part(map_.place_of(giver), 0, offset), bytes);
  });
  operation.finish();
}

void HierCommunicator::do_all_to_all(const OpTag& tag, Buffer in, Buffer out) {
  const std::int64_t bytes = in.bytes() / size();
  const auto peers = exchange().prepare();
  for (int p = 0; p < size(); ++p) {
    if (map_.host_of(p) != own_host()) peers[p] = {bytes_of(in) + p * bytes, bytes, bytes_of(out) + p * bytes, bytes};
  }
  exchange().run(tag);
  if (in.empty()) return;
  DirectOperation operation(*host_, tag, in, {size(), bytes, in.bytes()});
  const auto copy = copy_for(out.bytes());
  operation.chunks(0, bytes, [&](std::int64_t offset, std::int64_t count) {
    for (int i = 0; i < host_->size(); ++i) {
      const int place = (host_->rank() + i) % host_->size(), mate = mates()[static_cast<std::size_t>(place)];
      copy(bytes_of(out) + mate * bytes + offset, operation.part(place, rank(), offset), count);
    }
  });
  operation.finish();
}

void HierCommunicator::do_all_to_all_v(const OpTag& tag, const PartTable& parts, Buffer in, Buffer out) {
  const std::int64_t elem_bytes = size_of(in.dtype);
  const auto peers = exchange().prepare();
  for (int p = 0; p < size(); ++p) {
    if (map_.host_of(p) == own_host()) continue;
    peers[p] = {bytes_of(in) + parts.sent_begin(rank(), p) * elem_bytes, parts.count(rank(), p) * elem_bytes,
                bytes_of(out) + parts.received_begin(rank(), p) * elem_bytes, parts.count(p, rank()) * elem_bytes};
  }
  exchange().run(tag);
  DirectOperation operation(*host_, tag, in, {1, parts.most_sent() * elem_bytes, in.bytes()});
  fetch_parts(operation, parts, mates(), rank(), out);
  operation.finish();
}

std::unique_ptr<Communicator> make_group(MPI_Comm comm, std::span<const int> hosts,
                                         std::unique_ptr<ShmCommunicator> host, const WorldOptions& options,
                                         std::shared_ptr<Allocator> arena) {
  HostMap map(hosts);
  if (map.transport() == "shm") {
    check_mpi(MPI_Comm_free(&comm), "MPI_Comm_free");
    return host;
  }
  if (map.transport() == "mpi") return std::make_unique<MpiCommunicator>(comm, options, std::move(arena));
  return std::make_unique<HierCommunicator>(comm, std::move(map), std::move(host), options, std::move(arena));
}

}  // namespace zs
