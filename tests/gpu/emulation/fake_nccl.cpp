#include "tests/gpu/emulation/fake_nccl.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <set>
#include <stdexcept>
#include <utility>

#include "runtime/base/dtype.h"

namespace zs::test {

/// What one rank gives to one operation of a communicator.
struct FakeOp {
  std::string kind;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t count = 0;
  int dtype = 0, number = 0;  // number: reduction, root, or peer

  bool goes_with(const FakeOp& other) const {
    return kind == other.kind && count == other.count && dtype == other.dtype && number == other.number;
  }
};

struct FakeMeeting {
  std::map<int, FakeOp> arrived;  // by rank
  std::map<int, std::shared_ptr<bool>> done;
};

/// A group of sends and receives of one rank.
struct FakeExchange {
  std::size_t open;
  std::shared_ptr<bool> done;
};
struct FakeLetter {
  FakeOp op;
  std::shared_ptr<FakeExchange> exchange;
};
/// What goes from one rank to another.
struct FakePair {
  std::deque<FakeLetter> sent, received;
};

struct FakeSplit {
  int color, key, rank;
  ncclComm** made;
};

/// The ranks of a communicator.
struct FakeClique {
  explicit FakeClique(int ranks) : members(static_cast<std::size_t>(ranks)), next(members.size()) {}
  std::vector<ncclComm*> members;  // null: has not come
  std::vector<std::size_t> next;   // collectives enqueued, by rank
  std::deque<FakeMeeting> meetings;
  std::map<std::pair<int, int>, FakePair> pairs;
  std::vector<std::pair<int, std::shared_ptr<bool>>> enqueued;  // (rank, done)
  std::vector<FakeSplit> splits;                                // of the round that is under way
  int rounds = 0;                                               // of splits, done

  bool is_complete() const {
    return std::none_of(members.begin(), members.end(), [](const ncclComm* member) { return member == nullptr; });
  }
};

}  // namespace zs::test

struct ncclComm {
  std::shared_ptr<zs::test::FakeClique> clique;
  int rank, gpu;
  bool is_dead = false;
  int error = 0;
  int looks = 0;                           // until what is under way is done
  std::function<bool()> ready = nullptr;   // beside that
  std::function<void()> launch = nullptr;  // then
};

namespace zs::test {
namespace {

std::atomic<FakeNccl*> active{nullptr};
thread_local int group_depth = 0;
thread_local std::vector<FakeOp> group_ops;
thread_local ncclComm* group_comm = nullptr;
thread_local CUstream_st* group_stream = nullptr;

std::size_t size_of_number(int dtype) {
  switch (dtype) {
    case nccl::kU8: return 1;
    case nccl::kBf16: return 2;
    case nccl::kI32:
    case nccl::kF32: return 4;
    default: return 8;
  }
}

template <class T>
T combined(T a, T b, int op) {
  if (op == nccl::kMax) return a > b ? a : b;
  if (op == nccl::kMin) return a < b ? a : b;
  return static_cast<T>(a + b);
}
template <>
BFloat16 combined(BFloat16 a, BFloat16 b, int op) {
  return BFloat16(combined(static_cast<float>(a), static_cast<float>(b), op));
}

template <class T>
void combine(std::byte* into, const std::byte* with, std::size_t count, int op) {
  for (std::size_t i = 0; i < count; ++i) {
    T a, b;
    std::memcpy(&a, into + i * sizeof(T), sizeof(T));
    std::memcpy(&b, with + i * sizeof(T), sizeof(T));
    a = combined(a, b, op);
    std::memcpy(into + i * sizeof(T), &a, sizeof(T));
  }
}

void combine(std::vector<std::byte>& into, const std::byte* with, std::size_t count, int dtype, int op) {
  switch (dtype) {
    case nccl::kF32: return combine<float>(into.data(), with, count, op);
    case nccl::kBf16: return combine<BFloat16>(into.data(), with, count, op);
    case nccl::kF64: return combine<double>(into.data(), with, count, op);
    case nccl::kI32: return combine<std::int32_t>(into.data(), with, count, op);
    case nccl::kI64: return combine<std::int64_t>(into.data(), with, count, op);
    default: throw std::logic_error("a sum of bytes");
  }
}

/// Of elements [begin, begin + count) of every rank's, from the rank behind `last` round to `last`.
std::vector<std::byte> reduced(const FakeMeeting& meeting, int last, std::size_t begin, std::size_t count) {
  const int ranks = static_cast<int>(meeting.arrived.size());
  const FakeOp& op = meeting.arrived.at(0);
  const std::size_t size = size_of_number(op.dtype);
  const auto part = [&](int r) { return meeting.arrived.at(r).from + begin * size; };
  const std::byte* const first = part((last + 1) % ranks);
  std::vector<std::byte> sum(first, first + count * size);
  for (int step = 2; step <= ranks; ++step) combine(sum, part((last + step) % ranks), count, op.dtype, op.number);
  return sum;
}

/// All read before anything is written: operations in place.
bool run_collective(const FakeMeeting& meeting) {
  const FakeOp& op = meeting.arrived.at(0);
  const std::size_t bytes = op.count * size_of_number(op.dtype);
  std::map<int, std::vector<std::byte>> results;
  std::vector<std::byte> all;
  for (const auto& [rank, own] : meeting.arrived) {
    if (!own.goes_with(op)) return false;
    if (op.kind == "all_gather") all.insert(all.end(), own.from, own.from + bytes);
    if (op.kind == "reduce_scatter") results[rank] = reduced(meeting, rank, static_cast<std::size_t>(rank) * op.count, op.count);
  }
  if (op.kind == "all_reduce") all = reduced(meeting, 0, 0, op.count);
  if (op.kind == "broadcast") {
    const std::byte* const from = meeting.arrived.at(op.number).from;
    all.assign(from, from + bytes);
  }
  for (const auto& [rank, own] : meeting.arrived) {
    const auto& result = op.kind == "reduce_scatter" ? results[rank] : all;
    if (!result.empty()) std::memcpy(own.to, result.data(), result.size());
  }
  return true;
}

void arrive(FakeClique& clique, std::size_t number, int rank, const FakeOp& op) {
  FakeMeeting& meeting = clique.meetings[number];
  meeting.arrived[rank] = op;
  if (meeting.arrived.size() < clique.members.size() || !run_collective(meeting)) return;  // if they differ, they wait for ever
  for (const auto& [r, done] : meeting.done) *done = true;
}

/// Those of a pair go together in their order, if they have the same size.
void match(FakePair& pair) {
  while (!pair.sent.empty() && !pair.received.empty()) {
    const FakeLetter sent = pair.sent.front(), received = pair.received.front();
    if (sent.op.count != received.op.count || sent.op.dtype != received.op.dtype) return;  // both wait for ever
    std::memcpy(received.op.to, sent.op.from, sent.op.count * size_of_number(sent.op.dtype));
    for (const auto& exchange : {sent.exchange, received.exchange}) {
      if (--exchange->open == 0) *exchange->done = true;
    }
    pair.sent.pop_front();
    pair.received.pop_front();
  }
}

void arrive(FakeClique& clique, int rank, const std::vector<FakeOp>& ops, const std::shared_ptr<FakeExchange>& exchange) {
  for (const FakeOp& op : ops) {
    const bool sends = op.kind == "send";
    FakePair& pair = sends ? clique.pairs[{rank, op.number}] : clique.pairs[{op.number, rank}];
    (sends ? pair.sent : pair.received).push_back({op, exchange});
    match(pair);
  }
}

}  // namespace

struct FakeNcclFunctions {
  template <class Body>
  static int call(const char* name, const Body& body) {
    FakeNccl& self = *active.load();
    const std::lock_guard lock(self.driver_.mutex());
    ++self.calls_[name];
    const auto failure = self.failures_.find(name);
    if (failure == self.failures_.end()) return body(self);
    const int status = failure->second;
    self.failures_.erase(failure);
    return status;
  }
  /// The same of a communicator that can be used.
  template <class Body>
  static int call_on(ncclComm* comm, const char* name, const Body& body) {
    return call(name, [&](FakeNccl& self) {
      const bool is_known = std::any_of(self.comms_.begin(), self.comms_.end(), [&](const auto& known) { return known.get() == comm; });
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
      if (config->magic != fresh.magic || config->size != sizeof fresh || config->version < 21800 || config->blocking != 0)
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
    std::sort(clique.splits.begin(), clique.splits.end(),
              [](const FakeSplit& a, const FakeSplit& b) { return std::pair(a.key, a.rank) < std::pair(b.key, b.rank); });
    for (const int color : colors) {
      const auto is_one = [&](const FakeSplit& wanted) { return wanted.color == color; };
      const auto part = std::make_shared<FakeClique>(static_cast<int>(std::count_if(clique.splits.begin(), clique.splits.end(), is_one)));
      int rank = 0;
      for (const FakeSplit& wanted : clique.splits) {
        if (is_one(wanted)) *wanted.made = add(self, part, rank++, clique.members[static_cast<std::size_t>(wanted.rank)]->gpu);
      }
    }
    clique.splits.clear();
    ++clique.rounds;
  }
  static int finalize(ncclComm* comm) {
    return call_on(comm, "ncclCommFinalize", [&](FakeNccl& self) { return begin(self, *comm, nullptr, nullptr); });
  }
  static int destroy(ncclComm* comm) {
    return call_on(comm, "ncclCommDestroy", [&](FakeNccl&) { return comm->is_dead = true, nccl::kSuccess; });
  }
  /// What it has on streams ends there, without having moved anything.
  static int abort(ncclComm* comm) {
    return call_on(comm, "ncclCommAbort", [&](FakeNccl&) {
      for (const auto& [rank, done] : comm->clique->enqueued) {
        if (rank == comm->rank) *done = true;
      }
      return comm->is_dead = true, nccl::kSuccess;
    });
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
      return launch(self, *comm, {std::move(op)}, stream);
    });
  }
  static int launch(FakeNccl& self, ncclComm& comm, std::vector<FakeOp> ops, CUstream_st* stream) {
    return begin(self, comm, nullptr, [&self, clique = comm.clique, rank = comm.rank, ops = std::move(ops), stream] {
      const auto done = std::make_shared<bool>(false);
      clique->enqueued.emplace_back(rank, done);
      if (ops[0].kind == "send" || ops[0].kind == "receive") {
        const auto exchange = std::make_shared<FakeExchange>(FakeExchange{ops.size(), done});
        self.driver_.launch(stream, [clique, rank, ops, exchange] { arrive(*clique, rank, ops, exchange); });
      } else {
        const std::size_t number = clique->next[static_cast<std::size_t>(rank)]++;
        if (clique->meetings.size() <= number) clique->meetings.resize(number + 1);
        clique->meetings[number].done[rank] = done;
        self.driver_.launch(stream, [clique, number, rank, ops] { arrive(*clique, number, rank, ops[0]); });
      }
      self.driver_.await(stream, done);
    });
  }
  static int all_gather(const void* from, void* to, std::size_t count, int dtype, ncclComm* comm, CUstream_st* stream) {
    return add_op(comm, "ncclAllGather", {"all_gather", bytes(from), bytes(to), count, dtype, 0}, stream);
  }
  static int reduce_scatter(const void* from, void* to, std::size_t count, int dtype, int op, ncclComm* comm, CUstream_st* stream) {
    return add_op(comm, "ncclReduceScatter", {"reduce_scatter", bytes(from), bytes(to), count, dtype, op}, stream);
  }
  static int all_reduce(const void* from, void* to, std::size_t count, int dtype, int op, ncclComm* comm, CUstream_st* stream) {
    return add_op(comm, "ncclAllReduce", {"all_reduce", bytes(from), bytes(to), count, dtype, op}, stream);
  }
  static int broadcast(const void* from, void* to, std::size_t count, int dtype, int root, ncclComm* comm, CUstream_st* stream) {
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
  static int enroll(ncclComm* comm, void* address, std::size_t, void** handle) {
    return call_on(comm, "ncclCommRegister", [&](FakeNccl&) { return *handle = address, nccl::kSuccess; });
  }
  static int discharge(ncclComm* comm, void*) {
    return call_on(comm, "ncclCommDeregister", [](FakeNccl&) { return nccl::kSuccess; });
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
      .enroll = enroll,
      .discharge = discharge,
  };
};

FakeNccl::FakeNccl(EmulatedDriver& driver, std::uint64_t seed)
    : driver_(driver), random_(seed), table_(std::make_shared<const NcclLibrary>(FakeNcclFunctions::kTable)) {
  if (active.exchange(this) != nullptr) throw std::logic_error("two fake NCCLs at a time");
}

FakeNccl::~FakeNccl() { active = nullptr; }

void FakeNccl::fail(const std::string& function, int status) {
  const std::lock_guard lock(driver_.mutex());
  failures_[function] = status;
}

void FakeNccl::fail_behind(int size, int rank, int status) {
  const std::lock_guard lock(driver_.mutex());
  for (const auto& comm : comms_) {
    if (!comm->is_dead && static_cast<int>(comm->clique->members.size()) == size && comm->rank == rank) comm->error = status;
  }
}

int FakeNccl::calls(const std::string& function) const {
  const std::lock_guard lock(driver_.mutex());
  const auto found = calls_.find(function);
  return found == calls_.end() ? 0 : found->second;
}

int FakeNccl::live() const {
  const std::lock_guard lock(driver_.mutex());
  return static_cast<int>(std::count_if(comms_.begin(), comms_.end(), [](const auto& comm) { return !comm->is_dead; }));
}

}  // namespace zs::test
