#include "tests/comm/conformance.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <map>
#include <numeric>
#include <thread>

#include "tests/comm/arrays.h"
#include "tests/comm/group_cases.h"
#include "tests/comm/host_cases.h"

namespace zs::test {
namespace {

template <class T>
constexpr std::array<std::int64_t, 6> kCounts = {0, 1, 3, 777, 1000, std::is_same_v<T, float> ? 100'003 : 10'007};

template <class T>
void all_gather_of(Communicator& comm, Stream& stream) {
  for (const std::int64_t n : kCounts<T>) {
    const auto wanted = [&](std::int64_t i) {
      return whole<T>(static_cast<int>(i / std::max<std::int64_t>(n, 1)), i % std::max<std::int64_t>(n, 1));
    };
    Array<T> shard(comm, n), full(comm, n * comm.size()), in_place(comm, n * comm.size());
    shard.fill([&](std::int64_t i) { return whole<T>(comm.rank(), i); });
    for (std::int64_t i = 0; i < n; ++i) in_place[comm.rank() * n + i] = shard[i];
    comm.all_gather(stream, "unit", shard.buffer(), full.buffer());
    comm.all_gather(stream, "unit", in_place.buffer().slice(comm.rank() * n, n), in_place.buffer());
    stream.synchronize();
    full.expect_is("all_gather", comm.rank(), wanted);
    in_place.expect_is("all_gather in place", comm.rank(), wanted);
    shard.expect_is("all_gather's input", comm.rank(), [&](std::int64_t i) { return whole<T>(comm.rank(), i); });
  }
}

void all_gather_concatenates(World& world, Device& device) {
  const auto comm = world.communicator();
  Stream& stream = device.stream(StreamRole::unshard);
  of_every_dtype([&]<class T>(T) { all_gather_of<T>(*comm, stream); });
}

/// What sums of T are carried in.
template <class T>
using Carried = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;

template <class T, class Out>
void reduce_scatter_of(Communicator& comm, Stream& stream) {
  using Wide = Carried<Out>;
  for (const std::int64_t n : kCounts<T>) {
    const auto sum = [&](std::int64_t i) {
      Wide sum{};
      for (int r = 0; r < comm.size(); ++r)
        sum = static_cast<Wide>(sum + static_cast<Wide>(wide<T>(r, comm.rank() * n + i)));
      return Out(sum);
    };
    Array<T> full(comm, n * comm.size());
    Array<Out> shard(comm, n);
    full.fill([&](std::int64_t i) { return wide<T>(comm.rank(), i); });
    comm.reduce_scatter(stream, "unit", full.buffer(), shard.buffer(), ReduceInto::overwrite);
    stream.synchronize();
    shard.expect_is("reduce_scatter", comm.rank(), sum);
    full.expect_is("reduce_scatter's input", comm.rank(), [&](std::int64_t i) { return wide<T>(comm.rank(), i); });
    if constexpr (std::is_same_v<T, Out>) {
      comm.reduce_scatter(stream, "unit", full.buffer(), full.buffer().slice(comm.rank() * n, n),
                          ReduceInto::overwrite);
      stream.synchronize();
      full.expect_is("reduce_scatter in place", comm.rank(), [&](std::int64_t i) {
        const bool own = i / std::max<std::int64_t>(n, 1) == comm.rank();
        return own ? sum(i - comm.rank() * n) : wide<T>(comm.rank(), i);
      });
    }
  }
}

void reduce_scatter_sums(World& world, Device& device) {
  const auto comm = world.communicator();
  Stream& stream = device.stream(StreamRole::reduce);
  reduce_scatter_of<float, float>(*comm, stream);
  reduce_scatter_of<BFloat16, float>(*comm, stream);
  reduce_scatter_of<BFloat16, BFloat16>(*comm, stream);
  reduce_scatter_of<double, double>(*comm, stream);
  reduce_scatter_of<std::int32_t, std::int32_t>(*comm, stream);
  reduce_scatter_of<std::int64_t, std::int64_t>(*comm, stream);
}

template <class T, class Out>
void accumulate_of(Communicator& comm, Stream& stream) {
  using Wide = Carried<Out>;
  for (const std::int64_t n : kCounts<T>) {
    Array<T> full(comm, n * comm.size());
    Array<Out> accumulator(comm, n);
    full.fill([&](std::int64_t i) { return wide<T>(comm.rank(), i); });
    accumulator.fill([&](std::int64_t i) { return wide<Out>(99, i); });
    comm.reduce_scatter(stream, "unit", full.buffer(), accumulator.buffer(), ReduceInto::accumulate);
    stream.synchronize();
    accumulator.expect_is("reduce_scatter onto an accumulator", comm.rank(), [&](std::int64_t i) {
      auto sum = static_cast<Wide>(wide<Out>(99, i));
      for (int r = 0; r < comm.size(); ++r)
        sum = static_cast<Wide>(sum + static_cast<Wide>(wide<T>(r, comm.rank() * n + i)));
      return Out(sum);
    });
    full.expect_is("reduce_scatter's input", comm.rank(), [&](std::int64_t i) { return wide<T>(comm.rank(), i); });
  }
}

void reduce_scatter_adds_to_gradients(World& world, Device& device) {
  const auto comm = world.communicator();
  Stream& stream = device.stream(StreamRole::reduce);
  accumulate_of<float, float>(*comm, stream);
  accumulate_of<BFloat16, float>(*comm, stream);
  accumulate_of<BFloat16, BFloat16>(*comm, stream);
}

void reduce_scatter_adds_to_anything(World& world, Device& device) {
  const auto comm = world.communicator();
  Stream& stream = device.stream(StreamRole::reduce);
  accumulate_of<double, double>(*comm, stream);
  accumulate_of<std::int32_t, std::int32_t>(*comm, stream);
  accumulate_of<std::int64_t, std::int64_t>(*comm, stream);
}

template <class T>
void all_reduce_of(Communicator& comm, Stream& stream) {
  using Wide = Carried<T>;
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
    for (const std::int64_t n : kCounts<T>) {
      Array<T> data(comm, n);
      data.fill([&](std::int64_t i) { return wide<T>(comm.rank(), i); });
      comm.all_reduce(stream, "unit", data.buffer(), op);
      stream.synchronize();
      data.expect_is("all_reduce", comm.rank(), [&](std::int64_t i) {
        auto result = static_cast<Wide>(wide<T>(0, i));
        for (int r = 1; r < comm.size(); ++r) {
          const auto next = static_cast<Wide>(wide<T>(r, i));
          result = op == ReduceOp::sum   ? static_cast<Wide>(result + next)
                   : op == ReduceOp::max ? std::max(result, next)
                                         : std::min(result, next);
        }
        return T(result);
      });
    }
  }
}

void all_reduce_reduces(World& world, Device& device) {
  const auto comm = world.communicator();
  Stream& stream = device.stream(StreamRole::compute);
  all_reduce_of<float>(*comm, stream);
  all_reduce_of<BFloat16>(*comm, stream);
  all_reduce_of<double>(*comm, stream);
  all_reduce_of<std::int32_t>(*comm, stream);
  all_reduce_of<std::int64_t>(*comm, stream);
}

template <class T>
void small_sums_of(Communicator& comm, Stream& stream) {
  reduce_scatter_of<T, T>(comm, stream);
  accumulate_of<T, T>(comm, stream);
  all_reduce_of<T>(comm, stream);
}

void whole_numbers_of_few_bits_are_reduced(World& world, Device& device) {
  const auto comm = world.communicator();
  Stream& stream = device.stream(StreamRole::reduce);
  small_sums_of<std::uint8_t>(*comm, stream);
  small_sums_of<std::uint16_t>(*comm, stream);
}

void a_nan_of_any_rank_wins(World& world, Device& device) {
  const auto comm = world.communicator();
  Stream& stream = device.stream(StreamRole::compute);
  for (const ReduceOp op : {ReduceOp::max, ReduceOp::min}) {
    Array<float> data(*comm, comm->size());
    data.fill([&](std::int64_t i) { return i == comm->rank() ? std::numeric_limits<float>::quiet_NaN() : 1.0f; });
    comm->all_reduce(stream, "unit", data.buffer(), op);
    stream.synchronize();
    for (int i = 0; i < comm->size(); ++i)
      expect(std::isnan(data[i]), "element {} of rank {} is not NaN", i, comm->rank());
  }
}

/// Threads and GPUs have neither messages nor chunks.
bool moves_in_chunks(const World& world) {
  const Transport transport = transport_of(world);
  return transport == Transport::mpi || transport == Transport::shm || transport == Transport::hier;
}

/// Longer than what shm moves, and mpi reduces, at once, and the last chunk shorter than the others.
void long_buffers_move_in_chunks(World& world, Device& device) {
  const auto comm = world.communicator();
  Stream& stream = device.stream(StreamRole::compute);
  const std::int64_t n = moves_in_chunks(world) ? 5'000'011 : 300'007;
  Array<float> data(*comm, n);
  data.fill([&](std::int64_t i) { return whole<float>(comm->rank(), i); });
  comm->broadcast(stream, "unit", data.buffer(), comm->size() - 1);
  stream.synchronize();
  data.expect_is("long broadcast", comm->rank(), [&](std::int64_t i) { return whole<float>(comm->size() - 1, i); });
  data.fill([&](std::int64_t i) { return static_cast<float>((i + comm->rank()) % 1021); });
  // The others' chunks fill the scratch and have to wait there for the late rank's.
  if (comm->rank() == comm->size() - 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  comm->all_reduce(stream, "unit", data.buffer(), ReduceOp::sum);
  stream.synchronize();
  data.expect_is("long all_reduce", comm->rank(), [&](std::int64_t i) {
    float sum = 0;
    for (int r = 0; r < comm->size(); ++r) sum += static_cast<float>((i + r) % 1021);
    return sum;
  });
}

/// Every operation in many steps, where it has any, with a last one that is shorter.
void long_shards_move_in_chunks(World& world, Device& device) {
  const auto comm = world.communicator();
  Stream& stream = device.stream(StreamRole::compute);
  const int size = comm->size(), rank = comm->rank();
  const std::int64_t n = (moves_in_chunks(world) ? 900'001 : 30'001) / size;
  const auto at = [&](int r, std::int64_t i) { return static_cast<float>((i * 3 + r) % 1021); };
  Array<float> shard(*comm, n), full(*comm, n * size), other(*comm, n * size);
  shard.fill([&](std::int64_t i) { return at(rank, i); });
  comm->all_gather(stream, "unit", shard.buffer(), full.buffer());
  comm->all_to_all(stream, "unit", full.buffer(), other.buffer());
  comm->reduce_scatter(stream, "unit", full.buffer(), shard.buffer(), ReduceInto::accumulate);
  comm->reduce_scatter(stream, "unit", full.buffer(), full.buffer().slice(rank * n, n), ReduceInto::overwrite);
  stream.synchronize();
  other.expect_is("long all_to_all", rank, [&](std::int64_t i) { return at(rank, i % n); });
  shard.expect_is("long reduce_scatter", rank,
                  [&](std::int64_t i) { return at(rank, i) * static_cast<float>(size + 1); });
  full.expect_is("long all_gather, and reduce_scatter in place", rank, [&](std::int64_t i) {
    const auto r = static_cast<int>(i / n);
    return at(r, i % n) * static_cast<float>(r == rank ? size : 1);
  });
}

template <class T>
void broadcast_of(Communicator& comm, Stream& stream) {
  for (int root = 0; root < comm.size(); ++root) {
    for (const std::int64_t n : kCounts<T>) {
      Array<T> data(comm, n);
      if (comm.rank() == root) data.fill([&](std::int64_t i) { return whole<T>(root, i); });
      comm.broadcast(stream, "unit", data.buffer(), root);
      stream.synchronize();
      data.expect_is("broadcast", comm.rank(), [&](std::int64_t i) { return whole<T>(root, i); });
    }
  }
}

void broadcast_copies_the_roots_data(World& world, Device& device) {
  const auto comm = world.communicator();
  Stream& stream = device.stream(StreamRole::offload);
  of_every_dtype([&]<class T>(T) { broadcast_of<T>(*comm, stream); });
}

template <class T>
void all_to_all_of(Communicator& comm, Stream& stream) {
  for (const std::int64_t n : kCounts<T>) {
    Array<T> in(comm, n * comm.size()), out(comm, n * comm.size());
    in.fill([&](std::int64_t i) { return whole<T>(comm.rank(), i); });
    const auto wanted = [&](std::int64_t i) { return whole<T>(static_cast<int>(i / n), comm.rank() * n + i % n); };
    comm.all_to_all(stream, "unit", in.buffer(), out.buffer());
    stream.synchronize();
    out.expect_is("all_to_all", comm.rank(), wanted);
    in.expect_is("all_to_all's input", comm.rank(), [&](std::int64_t i) { return whole<T>(comm.rank(), i); });
    comm.all_to_all(stream, "unit", in.buffer(), in.buffer());
    stream.synchronize();
    in.expect_is("all_to_all in place", comm.rank(), wanted);
  }
}

void all_to_all_transposes(World& world, Device& device) {
  const auto comm = world.communicator();
  Stream& stream = device.stream(StreamRole::compute);
  of_every_dtype([&]<class T>(T) { all_to_all_of<T>(*comm, stream); });
}

void nobody_passes_a_barrier_before_all_have_come(World& world, Device& device) {
  const auto comm = world.communicator();
  Stream& stream = device.stream(StreamRole::compute);
  for (int late = 0; late < comm->size(); ++late) {
    if (comm->rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const auto now = [] { return std::int64_t{std::chrono::steady_clock::now().time_since_epoch().count()}; };
    Array<std::int64_t> came(*comm, 1), went(*comm, 1);
    came[0] = now();  // one clock for all processes of a host
    comm->barrier(stream, "unit");
    stream.synchronize();
    went[0] = now();
    comm->all_reduce(stream, "unit", came.buffer(), ReduceOp::max);
    comm->all_reduce(stream, "unit", went.buffer(), ReduceOp::min);
    stream.synchronize();
    expect(came[0] <= went[0], "a rank went {} ns before the last one came", came[0] - went[0]);
  }
}

/// Counted bytes after reductions of several sizes on two streams. The buffers are never touched on the meta device.
std::map<std::string, std::int64_t> reduced_bytes(World& world, Device& device, CommDType comm_dtype) {
  const auto comm = world.communicator();
  for (const std::int64_t n : {0, 3, 777, 100'003, 700'001}) {
    Memory data =
        device.pool().acquire(n * world.size() * size_of(DType::f32), device.stream(StreamRole::reduce), "data");
    const Buffer full = data.buffer(DType::f32, n * world.size());
    comm->reduce_scatter(device.stream(StreamRole::reduce), "unit", full, full.slice(world.rank() * n, n),
                         ReduceInto::overwrite, comm_dtype);
  }
  const auto small = world.communicator();
  for (const std::int64_t n : {1, 5'003}) {
    Memory data = device.pool().acquire(n * size_of(DType::f32), device.stream(StreamRole::compute), "data");
    small->all_reduce(device.stream(StreamRole::compute), "unit", data.buffer(DType::f32, n), ReduceOp::max);
  }
  if (device.kind() != DeviceKind::meta) device.synchronize();
  auto bytes = device.memory().live_by_label();
  bytes["peak"] = device.memory().peak_bytes();
  bytes["reserved"] = device.memory().reserved_bytes();
  return bytes;
}

void scratch_is_counted_and_planned(World& world, Device&) {
  const Transport transport = transport_of(world);
  const bool reduces_in_scratch = (transport == Transport::mpi || transport == Transport::hier) && world.size() > 1;
  for (const CommDType comm_dtype : {CommDType::exact, CommDType::int8}) {
    const auto device = Device::create(DeviceKind::cpu, {}), meta = Device::create(DeviceKind::meta, {});
    const auto real = reduced_bytes(world, *device, comm_dtype);
    const auto planned =
        reduced_bytes(*make_meta_world(world.rank(), world.size(), transport_info_of(world)), *meta, comm_dtype);
    for (const auto& [name, bytes] : real) {
      const auto found = planned.find(name);
      expect(found != planned.end() && found->second == bytes, "{} bytes of {} on rank {}, planned {}", bytes, name,
             world.rank(), found == planned.end() ? 0 : found->second);
    }
    const bool has_scratch = reduces_in_scratch || (comm_dtype == CommDType::int8 && world.size() > 1);
    expect(real.contains("scratch") == has_scratch && planned.size() == real.size(),
           "scratch on rank {}: {} labels here, {} planned", world.rank(), real.size(), planned.size());
  }
}

void agree_returns_the_lowest_failing_rank(World& world, Device&) {
  const auto none = world.agree(0, "not asked for");
  expect(none.code == 0 && none.message.empty() && none.rank == -1, "agreed on {} of rank {}", none.code, none.rank);
  const int first = world.size() / 2;
  const bool fails = world.rank() >= first;
  const auto some = world.agree(fails ? 65 + world.rank() : 0, fmt::format("rank {} says no", world.rank()));
  expect(some.code == 65 + first && some.rank == first && some.message == fmt::format("rank {} says no", first),
         "agreed on {} of rank {}: {}", some.code, some.rank, some.message);
  expect(world.agree(1, std::string(5000, 'x')).message == std::string(1000, 'x'), "a long message is not cut");
}

}  // namespace

std::span<const ConformanceCase> operation_cases() {
  static constexpr ConformanceCase kCases[] = {
      {"all_gather concatenates", all_gather_concatenates},
      {"reduce_scatter sums", reduce_scatter_sums},
      {"reduce_scatter adds to gradients", reduce_scatter_adds_to_gradients},
      {"reduce_scatter adds to anything", reduce_scatter_adds_to_anything, kAnyAccumulator},
      {"sums are folded in the transport's order", sums_are_folded_in_the_transports_order, kWrittenOrder},
      {"messages carry what they must", messages_carry_what_they_must, kHostMemory},
      {"packed sums are folded in the transport's order", packed_sums_are_folded_in_the_transports_order},
      {"all_reduce reduces", all_reduce_reduces},
      {"whole numbers of few bits are reduced", whole_numbers_of_few_bits_are_reduced, kAnyAccumulator},
      {"a NaN of any rank wins", a_nan_of_any_rank_wins, kNansWin},
      {"long buffers move in chunks", long_buffers_move_in_chunks},
      {"long shards move in chunks", long_shards_move_in_chunks},
      {"scratch is counted and planned", scratch_is_counted_and_planned, kHostMemory},
      {"broadcast copies the root's data", broadcast_copies_the_roots_data},
      {"all_to_all transposes", all_to_all_transposes},
      {"parts of any size arrive", parts_of_any_size_arrive},
      {"nobody passes a barrier before all have come", nobody_passes_a_barrier_before_all_have_come},
      {"communicators on different streams do not mix", communicators_on_different_streams_do_not_mix, kAnyOrder},
      {"split orders ranks of a color by key", split_orders_ranks_of_a_color_by_key},
      {"communicators can be made and dropped for ever", communicators_can_be_made_and_dropped_for_ever},
      {"a communicator that ends does what it was given", a_communicator_that_ends_does_what_it_was_given},
      {"groups in flight at once do not mix", groups_in_flight_at_once_do_not_mix},
      {"groups in flight at once do not mix, whatever the hosts' order", groups_in_flight_in_any_order_do_not_mix,
       kAnyOrder},
      {"a window is everybody's", a_window_is_everybodys},
      {"mesh axes connect the right ranks", mesh_axes_connect_the_right_ranks},
      {"agree returns the lowest failing rank", agree_returns_the_lowest_failing_rank},
  };
  return kCases;
}

}  // namespace zs::test
