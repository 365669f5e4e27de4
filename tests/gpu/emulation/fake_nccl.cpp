#include "tests/gpu/emulation/fake_nccl.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>

#include "tests/gpu/emulation/fake_clique.h"

struct ncclComm {
  std::shared_ptr<zs::test::FakeClique> clique;
  int rank, gpu;
  bool is_dead = false;
  int error = 0;
  int looks = 0;                           // until what is under way is done
  std::function<bool()> ready = nullptr;   // beside that
  std::function<void()> launch = nullptr;  // then
  /// Graphs have copies of it.
  std::shared_ptr<const char> hold = std::make_shared<const char>();

  bool is_held_by_graphs() const { return hold.use_count() > 1; }
};

namespace zs::test {
namespace {

std::atomic<FakeNccl*> active{nullptr};
thread_local int group_depth = 0;
thread_local std::vector<FakeOp> group_ops;
thread_local ncclComm* group_comm = nullptr;
thread_local CUstream_st* group_stream = nullptr;

/// As long as a communicator that ends waits for graphs that have captured it; the real one does for ever.
constexpr std::chrono::seconds kLongestHold{5};

/// One operation, or group of sends and receives, of one rank on a stream; again with each replay of a graph.
struct FakeLaunch {
  const ncclComm& comm;
  std::vector<FakeOp> ops;
  std::shared_ptr<bool> done = std::make_shared<bool>(false);
  std::shared_ptr<const char> hold = nullptr;  // of the communicator, if it is captured

  void begin() {
    FakeClique& clique = *comm.clique;
    if (hold != nullptr) {
      done = std::make_shared<bool>(false);
      clique.enqueued.emplace_back(comm.rank, done);
    }
    if (comm.is_dead) {
      *done = true;
    } else if (ops[0].kind == "send" || ops[0].kind == "receive") {
      arrive(clique, comm.rank, ops, std::make_shared<FakeExchange>(FakeExchange{ops.size(), done}));
    } else {
      arrive(clique, comm.rank, ops[0], done);
    }
  }
};

}  // namespace

struct FakeNcclFunctions {
  template <class Body>
  static int call(const char* name, const Body& body) {
    FakeNccl& self = *active.load();
    const std::lock_guard lock(self.driver_.mutex());
    const int status = self.calls_.enter(name);
    return status != 0 ? status : body(self);
  }
  /// The same of a communicator that can be used.
  template <class Body>
  static int call_on(ncclComm* comm, const char* name, const Body& body) {
    return call(name, [&](FakeNccl& self) {
      const bool is_known =
          std::any_of(self.comms_.begin(), self.comms_.end(), [&](const auto& known) { return known.get() == comm; });
      if (!is_known || comm->is_dead) return nccl::kInvalidArgument;
      return body(self);
    });
  }
  static bool is_under_way(const ncclComm& comm) { return comm.looks > 0 || comm.ready || comm.launch; }
  /// From now on it is under way, for some looks.
  static int begin(FakeNccl& self, ncclComm& comm, std::function<bool()> ready, std::function<void()> launch) {
    if (is_under_way(comm)) return nccl::kInvalidUsage;
    comm.looks = static_cast<int>(self.random_() % 4);
    comm.ready = std::move(ready);
    comm.launch = std::move(launch);
    return progress(comm);
  }
  static int progress(ncclComm& comm) {
    if (comm.error != 0) return comm.error;
    if (comm.looks > 0 && --comm.looks > 0) return nccl::kInProgress;
    if (comm.ready && !comm.ready()) return nccl::kInProgress;
    comm.ready = nullptr;
    if (comm.launch) comm.launch();
    comm.launch = nullptr;
    return nccl::kSuccess;
  }

  static int version(int* version) {
    return call("ncclGetVersion", [&](FakeNccl&) { return *version = 22800, nccl::kSuccess; });
  }
  static const char* error_text(int) { return "a made-up error"; }
  static const char* last_error(ncclComm*) { return "nothing is known"; }
  static int unique_id(NcclLibrary::Id* id) {
    return call("ncclGetUniqueId", [&](FakeNccl& self) {
      std::memset(id, 0x5a, sizeof *id);  // not text
      id->bytes[5] = 0;
      return std::memcpy(id->bytes + 100, &++self.ids_, sizeof(int)), nccl::kSuccess;
    });
  }
  static int init(ncclComm** comm, int ranks, NcclLibrary::Id id, int rank, NcclLibrary::Config* config) {
    return call("ncclCommInitRankConfig", [&](FakeNccl& self) {
      const NcclLibrary::Config fresh;
      if (config->magic != fresh.magic || config->size != sizeof fresh || config->version < 21800 ||
          config->blocking != 0)
        return nccl::kInvalidArgument;
      auto& clique = self.started_[std::string(id.bytes, sizeof id.bytes)];
      if (clique == nullptr) clique = std::make_shared<FakeClique>(ranks);
      const int gpu = EmulatedDriver::current_gpu();
      const auto seat = static_cast<std::size_t>(rank);
      if (gpu < 0 || clique->members.size() != static_cast<std::size_t>(ranks) || clique->members.at(seat) != nullptr)
        return nccl::kInvalidArgument;
      for (const ncclComm* member : clique->members) {
        if (member != nullptr && member->gpu == gpu) return nccl::kInvalidUsage;
      }
      *comm = add(self, clique, rank, gpu);
      return begin(
          self, **comm, [clique] { return clique->is_complete(); }, nullptr);
    });
  }
  static ncclComm* add(FakeNccl& self, const std::shared_ptr<FakeClique>& clique, int rank, int gpu) {
    self.comms_.push_back(std::make_unique<ncclComm>(ncclComm{clique, rank, gpu}));
    return clique->members[static_cast<std::size_t>(rank)] = self.comms_.back().get();
  }
  static int split(ncclComm* comm, int color, int key, ncclComm** made, NcclLibrary::Config* config) {
    return call_on(comm, "ncclCommSplit", [&](FakeNccl& self) {
      FakeClique& clique = *comm->clique;
      if (color < 0 || config != nullptr) return nccl::kInvalidArgument;
      for (const auto& [rank, done] : clique.enqueued) {
        if (rank == comm->rank && !*done) return nccl::kInvalidUsage;
      }
      clique.splits.push_back({color, key, comm->rank, made});
      const int round = clique.rounds;
      if (clique.splits.size() == clique.members.size()) finish_split(self, clique);
      return begin(
          self, *comm, [whole = comm->clique, round] { return whole->rounds > round; }, nullptr);
    });
  }
  static void finish_split(FakeNccl& self, FakeClique& clique) {
    std::set<int> colors;
    for (const FakeSplit& wanted : clique.splits) colors.insert(wanted.color);
    std::sort(clique.splits.begin(), clique.splits.end(), [](const FakeSplit& a, const FakeSplit& b) {
      return std::pair(a.key, a.rank) < std::pair(b.key, b.rank);
    });
    for (const int color : colors) {
      const auto is_one = [&](const FakeSplit& wanted) { return wanted.color == color; };
      const auto part = std::make_shared<FakeClique>(
          static_cast<int>(std::count_if(clique.splits.begin(), clique.splits.end(), is_one)));
      int rank = 0;
      for (const FakeSplit& wanted : clique.splits) {
        if (is_one(wanted))
          *wanted.made = add(self, part, rank++, clique.members[static_cast<std::size_t>(wanted.rank)]->gpu);
      }
    }
    clique.splits.clear();
    ++clique.rounds;
  }
  static int finalize(ncclComm* comm) {
    return call_on(comm, "ncclCommFinalize", [&](FakeNccl& self) {
      return begin(
          self, *comm, [comm] { return !comm->is_held_by_graphs(); }, nullptr);
    });
  }
  static int destroy(ncclComm* comm) {
    return call_on(comm, "ncclCommDestroy",
                   [&](FakeNccl& self) { return comm->is_dead = true, self.registry_.end(comm, false); });
  }
  /// What it has on streams ends there, without having moved anything. Then it waits for the graphs that hold it, as
  /// the real one does.
  static int abort(ncclComm* comm) {
    const int status = call_on(comm, "ncclCommAbort", [&](FakeNccl& self) {
      for (const auto& [rank, done] : comm->clique->enqueued) {
        if (rank == comm->rank) *done = true;
      }
      return comm->is_dead = true, self.registry_.end(comm, true);
    });
    return status != nccl::kSuccess ? status : await_graphs(*active.load(), *comm);
  }
  static int await_graphs(FakeNccl& self, const ncclComm& comm) {
    const auto end = std::chrono::steady_clock::now() + kLongestHold;
    for (;;) {
      {
        const std::lock_guard lock(self.driver_.mutex());
        if (!comm.is_held_by_graphs()) return nccl::kSuccess;
        if (std::chrono::steady_clock::now() > end) return ++self.held_too_long_, nccl::kSuccess;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  static int async_error(ncclComm* comm, int* status) {
    return call_on(comm, "ncclCommGetAsyncError", [&](FakeNccl&) { return *status = progress(*comm), nccl::kSuccess; });
  }

  static int add_op(ncclComm* comm, const char* name, FakeOp op, CUstream_st* stream) {
    return call_on(comm, name, [&](FakeNccl& self) {
      if (group_depth > 0) {
        group_ops.push_back(std::move(op));
        group_comm = comm;
        group_stream = stream;
        return nccl::kSuccess;
      }
      op.from_place = self.registry_.place_of(comm, op.from);
      op.to_place = self.registry_.place_of(comm, op.to);
      return launch(self, *comm, {std::move(op)}, stream);
    });
  }
  static int launch(FakeNccl& self, ncclComm& comm, std::vector<FakeOp> ops, CUstream_st* stream) {
    return begin(self, comm, nullptr, [&self, &comm, ops = std::move(ops), stream] {
      const auto launched = std::make_shared<FakeLaunch>(FakeLaunch{comm, ops});
      if (self.driver_.captures(stream)) {
        const std::size_t number = ++comm.clique->captured[static_cast<std::size_t>(comm.rank)];
        for (FakeOp& op : launched->ops) op.captured = number;
        launched->hold = comm.hold;
      } else {
        comm.clique->enqueued.emplace_back(comm.rank, launched->done);
      }
      self.driver_.launch(stream, [launched] { launched->begin(); });
      self.driver_.await(stream, [launched] { return *launched->done; });
    });
  }
  static int all_gather(const void* from, void* to, std::size_t count, int dtype, ncclComm* comm, CUstream_st* stream) {
    return add_op(comm, "ncclAllGather", {"all_gather", bytes(from), bytes(to), count, dtype, 0}, stream);
  }
  static int reduce_scatter(const void* from, void* to, std::size_t count, int dtype, int op, ncclComm* comm,
                            CUstream_st* stream) {
    return add_op(comm, "ncclReduceScatter", {"reduce_scatter", bytes(from), bytes(to), count, dtype, op}, stream);
  }
  static int all_reduce(const void* from, void* to, std::size_t count, int dtype, int op, ncclComm* comm,
                        CUstream_st* stream) {
    return add_op(comm, "ncclAllReduce", {"all_reduce", bytes(from), bytes(to), count, dtype, op}, stream);
  }
  static int broadcast(const void* from, void* to, std::size_t count, int dtype, int root, ncclComm* comm,
                       CUstream_st* stream) {
    return add_op(comm, "ncclBroadcast", {"broadcast", bytes(from), bytes(to), count, dtype, root}, stream);
  }
  static int send(const void* from, std::size_t count, int dtype, int peer, ncclComm* comm, CUstream_st* stream) {
    return add_op(comm, "ncclSend", {"send", bytes(from), nullptr, count, dtype, peer}, stream);
  }
  static int receive(void* to, std::size_t count, int dtype, int peer, ncclComm* comm, CUstream_st* stream) {
    return add_op(comm, "ncclRecv", {"receive", nullptr, bytes(to), count, dtype, peer}, stream);
  }
  static const std::byte* bytes(const void* data) { return static_cast<const std::byte*>(data); }
  static std::byte* bytes(void* data) { return static_cast<std::byte*>(data); }

  static int group_start() {
    return call("ncclGroupStart", [](FakeNccl&) { return ++group_depth, nccl::kSuccess; });
  }
  static int group_end() {
    return call("ncclGroupEnd", [](FakeNccl& self) {
      if (group_depth == 0) return nccl::kInvalidUsage;
      --group_depth;
      ncclComm* const comm = std::exchange(group_comm, nullptr);
      auto ops = std::exchange(group_ops, {});
      return comm == nullptr ? nccl::kSuccess : launch(self, *comm, std::move(ops), group_stream);
    });
  }
  static int memory_allocate(void** address, std::size_t bytes) {
    return call("ncclMemAlloc", [&](FakeNccl& self) { return self.registry_.allocate(address, bytes); });
  }
  static int memory_free(void* address) {
    return call("ncclMemFree", [&](FakeNccl& self) { return self.registry_.give_back(address); });
  }
  static int enroll(ncclComm* comm, void* address, std::size_t bytes, void** handle) {
    return call_on(comm, "ncclCommRegister",
                   [&](FakeNccl& self) { return self.registry_.enroll(comm, address, bytes, handle); });
  }
  static int discharge(ncclComm* comm, void* handle) {
    return call_on(comm, "ncclCommDeregister", [&](FakeNccl& self) { return self.registry_.discharge(comm, handle); });
  }

  static constexpr NcclLibrary kTable = {
      .version = version,
      .error_text = error_text,
      .last_error = last_error,
      .unique_id = unique_id,
      .init = init,
      .split = split,
      .finalize = finalize,
      .destroy = destroy,
      .abort = abort,
      .async_error = async_error,
      .all_gather = all_gather,
      .reduce_scatter = reduce_scatter,
      .all_reduce = all_reduce,
      .broadcast = broadcast,
      .send = send,
      .receive = receive,
      .group_start = group_start,
      .group_end = group_end,
      .memory_allocate = memory_allocate,
      .memory_free = memory_free,
      .enroll = enroll,
      .discharge = discharge,
  };
};

FakeNccl::FakeNccl(EmulatedDriver& driver, std::uint64_t seed)
    : driver_(driver),
      random_(seed),
      registry_(driver),
      table_(std::make_shared<const NcclLibrary>(FakeNcclFunctions::kTable)) {
  if (active.exchange(this) != nullptr) throw std::logic_error("two fake NCCLs at a time");
}

FakeNccl::~FakeNccl() { active = nullptr; }

void FakeNccl::fail(const std::string& function, int status) {
  const std::lock_guard lock(driver_.mutex());
  calls_.fail(function, status);
}

void FakeNccl::fail_behind(int size, int rank, int status) {
  const std::lock_guard lock(driver_.mutex());
  for (const auto& comm : comms_) {
    if (!comm->is_dead && static_cast<int>(comm->clique->members.size()) == size && comm->rank == rank)
      comm->error = status;
  }
}

int FakeNccl::calls(const std::string& function) const {
  const std::lock_guard lock(driver_.mutex());
  return calls_.count(function);
}

FakeNccl::Registered FakeNccl::registered() const {
  const std::lock_guard lock(driver_.mutex());
  Registered sum{};
  std::set<const FakeClique*> cliques;
  for (const auto& comm : comms_) cliques.insert(comm->clique.get());
  for (const FakeClique* clique : cliques) {
    sum.collectives += clique->registered;
    sum.displaced += clique->displaced;
  }
  return sum;
}

int FakeNccl::held_too_long() const {
  const std::lock_guard lock(driver_.mutex());
  return held_too_long_;
}

int FakeNccl::live() const {
  const std::lock_guard lock(driver_.mutex());
  return static_cast<int>(std::count_if(comms_.begin(), comms_.end(), [](const auto& comm) { return !comm->is_dead; }));
}

}  // namespace zs::test
