#include "tests/comm/group_cases.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <thread>

#include "comm/mesh.h"
#include "tests/comm/arrays.h"

namespace zs::test {
namespace {

std::vector<std::int32_t> members(Communicator& comm, Stream& stream, int self) {
  Array<std::int32_t> shard(comm, 1), full(comm, comm.size());
  shard[0] = self;
  comm.all_gather(stream, "members", shard.buffer(), full.buffer());
  stream.synchronize();
  return {&full[0], &full[0] + comm.size()};
}

/// Rows and columns of a grid that need not be full, and the world: each a group with a stream of its own.
constexpr int kGroups = 3;
constexpr std::array<StreamRole, kGroups> kRolesOfGroups = {StreamRole::unshard, StreamRole::reduce,
                                                            StreamRole::compute};

std::vector<int> group_of(const World& world, int group) {
  const int width = world.size() > 4 ? 3 : 2;
  std::vector<int> ranks;
  for (int r = 0; r < world.size(); ++r) {
    const bool is_in = group == 0   ? r / width == world.rank() / width
                       : group == 1 ? r % width == world.rank() % width
                                    : true;
    if (is_in) ranks.push_back(r);
  }
  return ranks;
}

/// One operation of a group, and what must come of it.
template <class T>
class InFlight {
 public:
  InFlight(Communicator& comm, const std::vector<int>& members, int group, int round)
      : op_(static_cast<Op>((group + round) % kOps)),
        n_(round % 5 == 0 ? 20'011 : 701),
        place_(comm.rank()),
        root_(round % comm.size()),
        ranks_(members),
        salt_(100 * group + round),
        in_(comm, n_ * comm.size()),
        out_(comm, op_ == Op::reduce_scatter ? n_ : n_ * comm.size()) {
    in_.fill([&](std::int64_t i) { return at(place_, i); });
  }

  void enqueue(Communicator& comm, Stream& stream) const {
    const Buffer in = in_.buffer(), out = out_.buffer();
    const std::vector<std::int64_t> counts(static_cast<std::size_t>(comm.size()), n_);
    switch (op_) {
      case Op::all_gather: return comm.all_gather(stream, "unit", in.slice(0, n_), out);
      case Op::reduce_scatter: return comm.reduce_scatter(stream, "unit", in, out, ReduceInto::overwrite);
      case Op::all_reduce: return comm.all_reduce(stream, "unit", in, ReduceOp::sum);
      case Op::broadcast: return comm.broadcast(stream, "unit", in, root_);
      case Op::all_to_all: return comm.all_to_all(stream, "unit", in, out);
      case Op::all_to_all_v: return comm.all_to_all_v(stream, "unit", {in, counts}, {in, counts});
    }
  }
  void check(int group, int rank) const {
    const std::string what = fmt::format("operation {} of group {}", static_cast<int>(op_), group);
    const bool is_in_place = op_ == Op::all_reduce || op_ == Op::broadcast || op_ == Op::all_to_all_v;
    (is_in_place ? in_ : out_).expect_is(what.c_str(), rank, [&](std::int64_t i) { return wanted(i); });
  }

 private:
  enum class Op : std::uint8_t { all_gather, reduce_scatter, all_reduce, broadcast, all_to_all, all_to_all_v };
  static constexpr int kOps = 6;

  /// What the member at `place` puts in.
  T at(int place, std::int64_t i) const { return whole<T>(ranks_[static_cast<std::size_t>(place)] + salt_, i); }
  T sum(std::int64_t i) const {
    float sum = 0;  // exact, whatever T
    for (int place = 0; place < std::ssize(ranks_); ++place) sum += static_cast<float>(at(place, i));
    return T(sum);
  }
  T wanted(std::int64_t i) const {
    const auto sender = static_cast<int>(i / n_);
    switch (op_) {
      case Op::all_gather: return at(sender, i % n_);
      case Op::reduce_scatter: return sum(place_ * n_ + i);
      case Op::all_reduce: return sum(i);
      case Op::broadcast: return at(root_, i);
      case Op::all_to_all:
      case Op::all_to_all_v: break;
    }
    return at(sender, place_ * n_ + i % n_);
  }

  Op op_;
  std::int64_t n_;
  int place_, root_;
  const std::vector<int>& ranks_;
  int salt_;
  Array<T> in_, out_;
};

/// Which group's operation this rank enqueues next.
using NextGroup = int (*)(int rank, int step);

template <class T>
void run_groups_of(World& world, Device& device, NextGroup next) {
  constexpr int kRounds = 18;  // every group does every operation, beside others of the others
  std::array<std::vector<int>, kGroups> ranks;
  std::vector<std::unique_ptr<Communicator>> comms;
  std::array<std::deque<InFlight<T>>, kGroups> all;
  for (int group = 0; group < kGroups; ++group) {
    const auto at = static_cast<std::size_t>(group);
    ranks[at] = group_of(world, group);
    comms.push_back(world.group(ranks[at]));
    for (int round = 0; round < kRounds; ++round) all[at].emplace_back(*comms[at], ranks[at], group, round);
  }
  std::array<std::size_t, kGroups> done{};
  for (int step = 0; step < kGroups * kRounds; ++step) {
    auto group = static_cast<std::size_t>(next(world.rank(), step));
    while (done[group] == kRounds) group = (group + 1) % kGroups;
    all[group][done[group]++].enqueue(*comms[group], device.stream(kRolesOfGroups[group]));
  }
  device.synchronize();
  for (int group = 0; group < kGroups; ++group) {
    for (const InFlight<T>& one : all[static_cast<std::size_t>(group)]) one.check(group, world.rank());
  }
}

void run_groups(World& world, Device& device, NextGroup next) {
  run_groups_of<float>(world, device, next);
  run_groups_of<BFloat16>(world, device, next);
  run_groups_of<std::int32_t>(world, device, next);
}

}  // namespace

/// Ranks enqueue on their streams in different orders; only the order on each communicator is the same.
void communicators_on_different_streams_do_not_mix(World& world, Device& device) {
  constexpr int kRounds = 20;
  constexpr std::array kRoles = {StreamRole::compute, StreamRole::unshard, StreamRole::reduce, StreamRole::offload};
  const std::int64_t n = 1500;
  std::vector<std::unique_ptr<Communicator>> comms;
  for (std::size_t c = 0; c < kRoles.size(); ++c) comms.push_back(world.communicator());
  std::vector<std::unique_ptr<Array<std::int32_t>>> data;
  for (int i = 0; i < kRounds * static_cast<int>(kRoles.size()); ++i) {
    data.push_back(std::make_unique<Array<std::int32_t>>(*comms[0], n));
    data.back()->fill([&](std::int64_t e) { return whole<std::int32_t>(world.rank() + i, e); });
  }
  for (int step = 0; step < static_cast<int>(kRoles.size()); ++step) {
    const auto c = static_cast<std::size_t>((step + world.rank()) % static_cast<int>(kRoles.size()));
    for (int i = 0; i < kRounds; ++i) {
      const auto& one = *data[c * kRounds + static_cast<std::size_t>(i)];
      comms[c]->all_reduce(device.stream(kRoles[c]), "unit", one.buffer(), ReduceOp::sum);
    }
  }
  device.synchronize();
  for (int i = 0; i < static_cast<int>(data.size()); ++i) {
    data[static_cast<std::size_t>(i)]->expect_is("all_reduce beside others", world.rank(), [&](std::int64_t e) {
      std::int32_t sum = 0;
      for (int r = 0; r < world.size(); ++r) sum += whole<std::int32_t>(r + i, e);
      return sum;
    });
  }
}

void split_orders_ranks_of_a_color_by_key(World& world, Device& device) {
  Stream& stream = device.stream(StreamRole::compute);
  const auto all = world.communicator();
  const auto half = all->split(world.rank() % 2, -world.rank());
  std::vector<std::int32_t> wanted;
  for (int r = world.size() - 1; r >= 0; --r) {
    if (r % 2 == world.rank() % 2) wanted.push_back(r);
  }
  expect(members(*half, stream, world.rank()) == wanted, "wrong members on rank {}", world.rank());
  const auto again = half->split(0, half->rank());
  expect(members(*again, stream, world.rank()) == wanted, "wrong members of the duplicate on rank {}", world.rank());
  expect(again->rank() == half->rank() && again->size() == half->size(), "a duplicate with rank {} of {}",
         again->rank(), again->size());
}

/// What a transport keeps of a communicator that was dropped has another history on every rank.
void communicators_can_be_made_and_dropped_for_ever(World& world, Device& device) {
  Stream& stream = device.stream(StreamRole::compute);
  for (int round = 0; round < 20; ++round) {
    const auto all = world.communicator();
    const auto some = all->split(world.rank() % 2, world.rank());
    for (int i = 0; i < (world.rank() % 2 == 0 ? 3 : 0); ++i) some->barrier(stream, "unit");
    Array<std::int32_t> sum(*all, 5);
    sum.fill([&](std::int64_t i) { return static_cast<std::int32_t>(world.rank() + i); });
    all->all_reduce(stream, "unit", sum.buffer(), ReduceOp::max);
    stream.synchronize();
    sum.expect_is("all_reduce in a new group", world.rank(),
                  [&](std::int64_t i) { return static_cast<std::int32_t>(world.size() - 1 + i); });
  }
}

void a_communicator_that_ends_does_what_it_was_given(World& world, Device& device) {
  Stream& stream = device.stream(StreamRole::compute);
  const auto other = world.communicator();
  Array<std::int32_t> data(*other, 1000);
  data.fill([&](std::int64_t i) { return world.rank() + static_cast<int>(i); });
  {
    const auto comm = world.communicator();
    if (world.rank() == world.size() - 1) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    comm->all_reduce(stream, "unit", data.buffer(), ReduceOp::max);
  }
  // Memory of the communicator may be another's now
  const auto next = world.communicator();
  stream.synchronize();
  data.expect_is("all_reduce", world.rank(), [&](std::int64_t i) { return world.size() - 1 + static_cast<int>(i); });
}

void mesh_axes_connect_the_right_ranks(World& world, Device& device) {
  const int outer = world.size() % 2 == 0 ? 2 : 1, inner = world.size() / outer;
  const Mesh mesh({{"outer", outer}, {"inner", inner}}, world.rank(), world.size());
  expect(mesh.coordinate("outer") == world.rank() / inner && mesh.coordinate("inner") == world.rank() % inner,
         "wrong place of rank {}", world.rank());
  for (const char* axis : {"outer", "inner"}) {
    const auto comm = mesh.communicator(world, axis);
    const auto wanted = mesh.ranks_along(axis);
    expect(comm->rank() == mesh.coordinate(axis), "rank {} has place {} on axis {}", world.rank(), comm->rank(), axis);
    expect(std::ranges::equal(members(*comm, device.stream(StreamRole::compute), world.rank()), wanted),
           "wrong members of axis {}", axis);
  }
}

void groups_in_flight_at_once_do_not_mix(World& world, Device& device) {
  run_groups(world, device, [](int, int step) { return step % kGroups; });
}

void groups_in_flight_in_any_order_do_not_mix(World& world, Device& device) {
  run_groups(world, device, [](int rank, int step) {
    const auto seed = static_cast<std::uint64_t>(1000 * rank + step);
    return static_cast<int>(mix64(seed) % kGroups);
  });
}

}  // namespace zs::test
