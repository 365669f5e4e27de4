#include "tests/comm/host_cases.h"

#include <numeric>
#include <optional>
#include <vector>

#include "tests/comm/arrays.h"

namespace zs::test {
namespace {

template <class Part>
float sum_of(const HostMap& map, std::optional<float> start, const Part& part) {
  for (int host = 0; host < map.hosts(); ++host) {
    std::optional<float> sum;
    for (const int rank : map.ranks_on(host)) sum = sum ? *sum + part(rank) : part(rank);
    start = start ? *start + *sum : *sum;
  }
  return *start;
}

template <class T, class Out>
void reduce_order_of(const World& world, Communicator& comm, Stream& stream, std::int64_t n) {
  Array<T> full(comm, n * comm.size());
  Array<Out> shard(comm, n), accumulator(comm, n);
  full.fill([&](std::int64_t i) { return T(real(comm.rank(), i)); });
  accumulator.fill([&](std::int64_t i) { return Out(real(99, i)); });
  comm.reduce_scatter(stream, "unit", full.buffer(), shard.buffer(), ReduceInto::overwrite);
  comm.reduce_scatter(stream, "unit", full.buffer(), accumulator.buffer(), ReduceInto::accumulate);
  stream.synchronize();
  const HostMap map = summed_first(world);
  const auto part = [&](std::int64_t i) {
    return [&, i](int r) { return static_cast<float>(T(real(r, comm.rank() * n + i))); };
  };
  shard.expect_is("order of the sum", comm.rank(), [&](std::int64_t i) { return Out(sum_of(map, {}, part(i))); });
  accumulator.expect_is("order of the sum onto an accumulator", comm.rank(), [&](std::int64_t i) {
    return Out(sum_of(map, static_cast<float>(Out(real(99, i))), part(i)));
  });
}

/// Of one operation of `size` ranks on `hosts` hosts, whose largest buffer is `full` bytes: what all ranks together put
/// into messages.
struct Messages {
  std::int64_t all_gather, reduce_scatter, all_reduce, broadcast, all_to_all, packed_sum;
};

Messages expected_messages(const World& world, std::int64_t full) {
  const std::int64_t size = world.size();
  const HostMap map(world.hosts());
  const bool is_mpi = transport_of(world) == Transport::mpi, is_hier = transport_of(world) == Transport::hier;
  if (!is_mpi && !is_hier) return {};
  std::int64_t pairs = 0;  // of ranks that do not reach each other's memory
  for (int a = 0; a < size; ++a) {
    for (int b = 0; b < size; ++b) pairs += a != b && (is_mpi || map.host_of(a) != map.host_of(b)) ? 1 : 0;
  }
  const std::int64_t others = (is_mpi ? size : map.hosts()) - 1;
  const std::int64_t sums = (world.sums_in_rank_order() ? size - 1 : others) * full;
  const std::int64_t packed = packed_bytes(full / size_of(DType::f32) / size);
  return {
      .all_gather = others * full,
      .reduce_scatter = sums,
      .all_reduce = world.sums_in_rank_order()
                        ? 2 * sums
                        : sums + others * full,  // in rank order it is the mpi transport's throughout
      .broadcast = others * full,
      .all_to_all = pairs * full / size,
      .packed_sum = (is_hier && !world.sums_in_rank_order() ? others * size : pairs) * packed,
  };
}

}  // namespace

HostMap summed_first(const World& world) {
  std::vector<int> hosts = world.hosts();
  if (transport_of(world) != Transport::hier || world.sums_in_rank_order()) std::iota(hosts.begin(), hosts.end(), 0);
  return HostMap(hosts);
}

void sums_are_folded_in_the_transports_order(World& world, Device& device) {
  const auto comm = world.communicator();
  Stream& stream = device.stream(StreamRole::reduce);
  const HostMap map = summed_first(world);
  for (const std::int64_t n : {5, 20'001}) {
    reduce_order_of<float, float>(world, *comm, stream, n);
    reduce_order_of<BFloat16, float>(world, *comm, stream, n);
    reduce_order_of<BFloat16, BFloat16>(world, *comm, stream, n);
    Array<float> data(*comm, n);
    Array<BFloat16> narrow(*comm, n);
    data.fill([&](std::int64_t i) { return real(comm->rank(), i); });
    narrow.fill([&](std::int64_t i) { return BFloat16(real(comm->rank(), i)); });
    comm->all_reduce(stream, "unit", data.buffer(), ReduceOp::sum);
    comm->all_reduce(stream, "unit", narrow.buffer(), ReduceOp::sum);
    stream.synchronize();
    data.expect_is("order of all_reduce", comm->rank(),
                   [&](std::int64_t i) { return sum_of(map, {}, [&](int r) { return real(r, i); }); });
    narrow.expect_is("order of all_reduce in bf16", comm->rank(), [&](std::int64_t i) {
      return BFloat16(sum_of(map, {}, [&](int r) { return static_cast<float>(BFloat16(real(r, i))); }));
    });
  }
}

/// Each element once a host where hosts are told apart, and once a rank where not; nothing inside a host.
void messages_carry_what_they_must(World& world, Device& device) {
  const auto comm = world.communicator();
  Stream& stream = device.stream(StreamRole::compute);
  const std::int64_t n = 12'800, full_elems = n * comm->size(), full_bytes = full_elems * size_of(DType::f32);
  Array<float> full(*comm, full_elems), other(*comm, full_elems);
  full.fill([](std::int64_t) { return 1.0f; });
  const auto total_of = [&](const auto& operation) {
    const std::int64_t before = comm->message_bytes();
    operation();
    stream.synchronize();
    Array<std::int64_t> sum(*comm, 1);
    sum[0] = comm->message_bytes() - before;
    comm->all_reduce(stream, "sum", sum.buffer(), ReduceOp::sum);
    stream.synchronize();
    return sum[0];
  };
  const Buffer own = full.buffer().slice(comm->rank() * n, n);
  const Messages wanted = expected_messages(world, full_bytes);
  const Messages found = {
      total_of([&] { comm->all_gather(stream, "unit", own, full.buffer()); }),
      total_of([&] { comm->reduce_scatter(stream, "unit", full.buffer(), own, ReduceInto::overwrite); }),
      total_of([&] { comm->all_reduce(stream, "unit", full.buffer(), ReduceOp::sum); }),
      total_of([&] { comm->broadcast(stream, "unit", full.buffer(), comm->size() - 1); }),
      total_of([&] { comm->all_to_all(stream, "unit", full.buffer(), other.buffer()); }),
      total_of(
          [&] { comm->reduce_scatter(stream, "unit", full.buffer(), own, ReduceInto::overwrite, CommDType::int8); }),
  };
  const auto compare = [&](const char* what, std::int64_t a, std::int64_t b) {
    expect(a == b, "{} put {} bytes into messages, expected {}", what, a, b);
  };
  compare("all_gather", found.all_gather, wanted.all_gather);
  compare("reduce_scatter", found.reduce_scatter, wanted.reduce_scatter);
  compare("all_reduce", found.all_reduce, wanted.all_reduce);
  compare("broadcast", found.broadcast, wanted.broadcast);
  compare("all_to_all", found.all_to_all, wanted.all_to_all);
  compare("packed reduce_scatter", found.packed_sum, wanted.packed_sum);
}

void huge_buffers_arrive(World& world, Device& device) {
  const auto comm = world.communicator();
  Stream& stream = device.stream(StreamRole::compute);
  const int rank = comm->rank(), size = comm->size();
  const std::int64_t n = (std::int64_t{1} << 30) / size + 2049;  // of bf16
  Array<BFloat16> data(*comm, n * size);
  const Buffer full = data.buffer(), bytes{full.data, full.bytes(), DType::u8, full.device};
  const auto value = [](int r, std::int64_t i) { return BFloat16(static_cast<float>((i + i / 65'521 + r * 5) % 31)); };
  for (std::int64_t i = 0; i < n; ++i) data[rank * n + i] = value(rank, i);
  comm->all_gather(stream, "unit", bytes.slice(2 * rank * n, 2 * n), bytes);
  stream.synchronize();
  data.expect_is("huge all_gather", rank, [&](std::int64_t i) { return value(static_cast<int>(i / n), i % n); });
  comm->reduce_scatter(stream, "unit", full, full.slice(rank * n, n), ReduceInto::overwrite);
  stream.synchronize();
  data.expect_is("huge reduce_scatter", rank, [&](std::int64_t i) {
    const auto r = static_cast<int>(i / n);
    const BFloat16 gathered = value(r, i % n);
    return r == rank ? BFloat16(static_cast<float>(gathered) * static_cast<float>(size)) : gathered;
  });
  const int root = size - 1;
  comm->broadcast(stream, "unit", bytes, root);
  stream.synchronize();
  data.expect_is("huge broadcast", rank, [&](std::int64_t i) {
    const auto r = static_cast<int>(i / n);
    return r == root ? BFloat16(static_cast<float>(value(r, i % n)) * static_cast<float>(size)) : value(r, i % n);
  });
  data.fill([&](std::int64_t i) { return value(rank, i); });
  {
    const Array<BFloat16> turned(*comm, n * size);
    const auto wanted = [&](std::int64_t i) { return value(static_cast<int>(i / n), rank * n + i % n); };
    comm->all_to_all(stream, "unit", full, turned.buffer());
    stream.synchronize();
    turned.expect_is("huge all_to_all", rank, wanted);
    std::memset(turned.buffer().data, 0, static_cast<std::size_t>(turned.buffer().bytes()));
    const std::vector<std::int64_t> counts(static_cast<std::size_t>(size), n);
    comm->all_to_all_v(stream, "unit", {full, counts}, {turned.buffer(), counts});
    stream.synchronize();
    turned.expect_is("huge all_to_all_v", rank, wanted);
  }
  comm->all_reduce(stream, "unit", full, ReduceOp::sum);
  stream.synchronize();
  data.expect_is("huge all_reduce", rank, [&](std::int64_t i) {
    float sum = 0;
    for (int r = 0; r < size; ++r) sum += static_cast<float>(value(r, i));
    return BFloat16(sum);
  });
}

}  // namespace zs::test
