#include <algorithm>
#include <numeric>

#include "comm/gpu/gpu_side.h"
#include "comm/message_sums.h"
#include "comm/world.h"

namespace zs {
namespace {

constexpr int kArenaRange = 1;  // range of addresses; the meta device's own allocator has range 0

/// Declares and checks what the base class declares and checks; the work itself is empty.
class IdleCommunicator final : public Communicator {
 public:
  struct Kind {
    const char* name;
    TransportInfo stands_for;
    std::shared_ptr<Allocator> arena;
  };
  /// `ranks`: of the world.
  IdleCommunicator(std::span<const int> ranks, int rank, Kind kind)
      : rank_(rank),
        size_(static_cast<int>(ranks.size())),
        kind_(std::move(kind)),
        map_(hosts_of(ranks, kind_.stands_for)) {}
  ~IdleCommunicator() override { operations_.await(); }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const char* transport() const override { return kind_.name; }
  Allocator& arena() override { return *kind_.arena; }
  std::unique_ptr<Communicator> split(int color, int key) override {
    ZS_CHECK(color == 0 && key == rank_, "split({}, {}) on rank {}: this communicator can only be duplicated", color,
             key, rank_);
    return std::make_unique<IdleCommunicator>(*this);
  }
  std::shared_ptr<void> shared_window(std::int64_t bytes) override {
    if (sums_by() != Transport::local && sums_by() != Transport::shm) return nullptr;
    return {kind_.arena->allocate(bytes),
            [arena = kind_.arena, bytes](void* address) { arena->deallocate(address, bytes); }};
  }
  /// A duplicate: what the base class counts and watches is each one's own.
  IdleCommunicator(const IdleCommunicator& other)  // NOLINT(bugprone-copy-constructor-init)
      : rank_(other.rank_), size_(other.size_), kind_(other.kind_), map_(other.map_) {}

 private:
  static HostMap hosts_of(std::span<const int> ranks, const TransportInfo& transport_info) {
    std::vector<int> hosts(ranks.size());
    for (std::size_t i = 0; i < ranks.size() && !transport_info.hosts.empty(); ++i)
      hosts[i] = transport_info.hosts[static_cast<std::size_t>(ranks[i])];
    return HostMap(hosts);
  }
  /// Transport that carries this group's sums.
  Transport sums_by() const {
    const Transport transport = kind_.stands_for.transport;
    if (transport != Transport::hier) return transport;
    if (map_.is_one_host()) return Transport::shm;
    return map_.is_one_rank_each() || kind_.stands_for.sums_in_rank_order ? Transport::mpi : Transport::hier;
  }
  std::int64_t reduce_scatter_scratch_bytes(const Buffer& full, const Buffer& shard, ReduceInto into) const override {
    const Transport transport = sums_by();
    if (transport == Transport::hier) return hier_reduce_scatter_scratch_bytes(map_, full);
    if (transport == Transport::nccl)
      return nccl_reduce_scatter_scratch_bytes(full, shard, into, kind_.stands_for.sums_in_rank_order);
    return transport == Transport::mpi ? mpi_reduce_scatter_scratch_bytes(size_, full) : 0;
  }
  std::int64_t packed_sum_scratch_bytes(const Buffer& full) const override {
    return sums_by() == Transport::hier ? hier_packed_sum_scratch_bytes(map_, full)
                                        : Communicator::packed_sum_scratch_bytes(full);
  }
  std::int64_t all_reduce_scratch_bytes(const Buffer& data) const override {
    const Transport transport = sums_by();
    if (transport == Transport::hier) return hier_all_reduce_scratch_bytes(map_, data);
    return transport == Transport::mpi ? mpi_all_reduce_scratch_bytes(rank_, size_, data) : 0;
  }

  bool adds(DType dtype) const override { return sums_by() != Transport::nccl || nccl_adds(dtype); }
  bool adds_onto(DType dtype) const override { return sums_by() != Transport::nccl || nccl_adds_onto(dtype); }
  std::int64_t pinned_bytes(const Buffer& in, const Buffer& out) const override {
    return sums_by() == Transport::staged ? staged_bytes(in, out) : 0;
  }

  void do_all_gather(const OpTag&, Buffer, Buffer) override {}
  void do_reduce_scatter(const OpTag&, Buffer, Buffer, ReduceInto, void*) override {}
  void do_all_reduce(const OpTag&, Buffer, ReduceOp, void*) override {}
  void do_broadcast(const OpTag&, Buffer, int) override {}
  void do_all_to_all(const OpTag&, Buffer, Buffer) override {}
  void do_all_to_all_v(const OpTag&, const PartTable&, Buffer, Buffer) override {}
  void do_barrier(const OpTag&) override {}
  bool is_idle() const override { return true; }

  int rank_, size_;
  Kind kind_;
  HostMap map_;
};

std::vector<int> everybody(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::unique_ptr<Communicator> idle_group(std::span<const int> ranks, int self, const IdleCommunicator::Kind& kind) {
  const auto place = std::find(ranks.begin(), ranks.end(), self);
  ZS_CHECK(place != ranks.end(), "rank {} is not in the group it names", self);
  return std::make_unique<IdleCommunicator>(ranks, static_cast<int>(place - ranks.begin()), kind);
}

class MetaWorld final : public World {
 public:
  MetaWorld(int rank, int size, TransportInfo stands_for)
      : rank_(rank), size_(size), kind_{"meta", std::move(stands_for), make_meta_allocator(kArenaRange)} {
    ZS_CHECK(rank >= 0 && rank < size, "rank {} of a meta world of {}", rank, size);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return rank_; }
  int local_size() const override { return size_; }
  std::vector<int> hosts() const override {
    return kind_.stands_for.hosts.empty() ? World::hosts() : kind_.stands_for.hosts;
  }
  std::string transport() const override { return kind_.name; }
  std::unique_ptr<Communicator> communicator() override { return group(everybody(size_)); }
  std::unique_ptr<Communicator> group(std::span<const int> ranks) override { return idle_group(ranks, rank_, kind_); }
  Agreement agree(int code, const std::string& message) override {
    return code == 0 ? Agreement{} : Agreement{code, message.substr(0, 1000), rank_};
  }
  void abort(int) noexcept override {}

 private:
  int rank_, size_;
  IdleCommunicator::Kind kind_;
};

class NullWorld final : public World {
 public:
  explicit NullWorld(World& real) : real_(real) {}
  explicit NullWorld(std::unique_ptr<World> real) : owned_(std::move(real)), real_(*owned_) {}

  int rank() const override { return real_.rank(); }
  int size() const override { return real_.size(); }
  int local_rank() const override { return real_.local_rank(); }
  int local_size() const override { return real_.local_size(); }
  std::vector<int> hosts() const override { return real_.hosts(); }
  std::string transport() const override { return kind_.name; }
  std::unique_ptr<Communicator> communicator() override { return group(everybody(size())); }
  std::unique_ptr<Communicator> group(std::span<const int> ranks) override { return idle_group(ranks, rank(), kind_); }
  Agreement agree(int code, const std::string& message) override { return real_.agree(code, message); }
  void abort(int code) noexcept override { real_.abort(code); }
  Watchdog* watchdog() override { return real_.watchdog(); }

 private:
  std::unique_ptr<World> owned_;
  World& real_;
  IdleCommunicator::Kind kind_{"null", {Transport::null}, make_cpu_allocator()};
};

}  // namespace

Transport transport_of(const World& world) {
  const std::string name = world.transport();
  for (const auto& [known, transport] : {std::pair("mpi", Transport::mpi),
                                         {"shm", Transport::shm},
                                         {"hier", Transport::hier},
                                         {"null", Transport::null},
                                         {"nccl", Transport::nccl},
                                         {"staged", Transport::staged}}) {
    if (name == known) return transport;
  }
  return Transport::local;
}

std::string describe_transport(const World& world) {
  const std::string name = world.transport();
  if (name == "null") return "null (collectives do nothing: the results are meaningless)";
  return name == "hier" ? fmt::format("hier (shm inside {} hosts, mpi across)", HostMap(world.hosts()).hosts()) : name;
}

TransportInfo transport_info_of(const World& world) {
  return {transport_of(world), world.hosts(), world.sums_in_rank_order()};
}

std::unique_ptr<World> make_meta_world(int rank, int size, TransportInfo stands_for) {
  return std::make_unique<MetaWorld>(rank, size, std::move(stands_for));
}

std::unique_ptr<World> make_null_world(World& real) { return std::make_unique<NullWorld>(real); }
std::unique_ptr<World> make_null_world(std::unique_ptr<World> real) {
  return std::make_unique<NullWorld>(std::move(real));
}

}  // namespace zs
