#include <array>
#include <span>
#include <vector>

#include "comm/comm_dtype.h"
#include "comm/host/host_map.h"
#include "tests/comm/arrays.h"
#include "tests/comm/host_cases.h"

namespace zs::test {
namespace {

constexpr std::array<std::int64_t, 6> kPackedCounts = {0, 1, 255, 256, 777, 20'011};

/// n elements of rank `r` from element `first` on, packed.
template <class T>
std::vector<std::byte> packed(int r, std::int64_t first, std::int64_t n) {
  std::vector<T> values(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) values[static_cast<std::size_t>(i)] = T(real(r, first + i));
  std::vector<std::byte> bytes(static_cast<std::size_t>(packed_bytes(n)));
  pack_int8(bytes.data(), {values.data(), n, DTypeOf<T>::value, DeviceKind::cpu});
  return bytes;
}

/// n elements that `rank` of `map` gets from the ranks of `host` together: added up one after the other, and through
/// the wire where the host is another one.
template <class T>
std::vector<float> sum_of_host(const HostMap& map, int host, int rank, std::int64_t n) {
  std::vector<float> sum(static_cast<std::size_t>(n));
  const Buffer all{sum.data(), n, DType::f32, DeviceKind::cpu};
  const std::span<const int> ranks = map.ranks_on(host);
  const bool is_whole_host = map.hosts() < map.size(), is_own = is_whole_host && host == map.host_of(rank);
  if (!is_whole_host) {  // each rank by itself, in its own dtype, this one's own part too
    unpack_int8(all, packed<T>(ranks[0], rank * n, n).data());
    return sum;
  }
  for (const int r : ranks) {
    for (std::int64_t i = 0; i < n; ++i) {
      const auto part = static_cast<float>(T(real(r, rank * n + i)));
      float& element = sum[static_cast<std::size_t>(i)];
      element = r == ranks[0] ? part : element + part;
    }
  }
  if (is_own) return sum;
  std::vector<std::byte> bytes(static_cast<std::size_t>(packed_bytes(n)));
  pack_int8(bytes.data(), all);
  unpack_int8(all, bytes.data());
  return sum;
}

template <class T, class Out>
void sum_of(const World& world, Communicator& comm, Stream& stream) {
  const HostMap map = summed_first(world);
  std::vector<std::int64_t> counts(kPackedCounts.begin(), kPackedCounts.end());
  // Where hosts are added up in chunks: several, the last one shorter. Once, with few ranks, since it takes long.
  if (std::is_same_v<T, float> && map.hosts() == 2 && map.size() == 3) counts.push_back(750'011);
  for (const std::int64_t n : counts) {
    Array<T> full(comm, n * comm.size());
    Array<Out> shard(comm, n), accumulator(comm, n);
    full.fill([&](std::int64_t i) { return T(real(comm.rank(), i)); });
    accumulator.fill([&](std::int64_t i) { return Out(real(99, i)); });
    const std::int64_t before = comm.traffic().sent_bytes();
    comm.reduce_scatter(stream, "unit", full.buffer(), shard.buffer(), ReduceInto::overwrite, CommDType::int8);
    const std::int64_t sent = comm.traffic().sent_bytes() - before;
    comm.reduce_scatter(stream, "unit", full.buffer(), accumulator.buffer(), ReduceInto::accumulate, CommDType::int8);
    stream.synchronize();
    expect(sent == (comm.size() - 1) * packed_bytes(n), "{} bytes were counted for {} elements", sent, n);
    std::vector<float> sums, onto;
    for (std::int64_t i = 0; i < n; ++i) onto.push_back(static_cast<float>(Out(real(99, i))));
    for (int host = 0; host < map.hosts(); ++host) {
      std::vector<float> part = sum_of_host<T>(map, host, comm.rank(), n);
      for (std::size_t i = 0; i < part.size(); ++i) {
        if (comm.size() == 1)
          part[i] = static_cast<float>(T(real(0, static_cast<std::int64_t>(i))));  // nothing travels
        onto[i] += part[i];
        if (host > 0) sums[i] += part[i];
      }
      if (host == 0) sums = part;
    }
    shard.expect_is("packed sum", comm.rank(), [&](std::int64_t i) { return Out(sums[static_cast<std::size_t>(i)]); });
    accumulator.expect_is("packed sum onto an accumulator", comm.rank(),
                          [&](std::int64_t i) { return Out(onto[static_cast<std::size_t>(i)]); });
  }
}

}  // namespace

void packed_sums_are_folded_in_the_transports_order(World& world, Device& device) {
  const auto comm = world.communicator();
  sum_of<float, float>(world, *comm, device.stream(StreamRole::reduce));
  sum_of<BFloat16, float>(world, *comm, device.stream(StreamRole::reduce));
  sum_of<BFloat16, BFloat16>(world, *comm, device.stream(StreamRole::reduce));
}

}  // namespace zs::test
