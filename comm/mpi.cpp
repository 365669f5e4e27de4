#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "comm/mpi_exchange.h"
#include "comm/world.h"

namespace zs {
namespace {

struct MpiShared {
  WorldOptions options;
  std::unique_ptr<Allocator> arena = make_cpu_allocator();
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(MPI_Comm comm, std::shared_ptr<MpiShared> shared)
      : shared_(std::move(shared)), exchange_(comm, shared_->options.timeout_s) {}

  int rank() const override { return exchange_.rank(); }
  int size() const override { return exchange_.size(); }
  const char* transport() const override { return "mpi"; }
  Allocator& arena() override { return *shared_->arena; }
  std::unique_ptr<Communicator> split(int color, int key) override {
    MPI_Comm part = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split(exchange_.comm(), color, key, &part), "MPI_Comm_split");
    return std::make_unique<MpiCommunicator>(part, shared_);
  }

 private:
  std::int64_t reduce_scatter_scratch_bytes(const Buffer& full) const override { return mpi_reduce_scatter_scratch_bytes(size(), full); }
  std::int64_t all_reduce_scratch_bytes(const Buffer& data) const override { return mpi_all_reduce_scratch_bytes(rank(), size(), data); }

  void do_all_gather(const OpTag& tag, Buffer shard, Buffer full) override;
  void do_reduce_scatter(const OpTag& tag, Buffer full, Buffer shard, Fold how, void* scratch) override;
  void do_all_reduce(const OpTag& tag, Buffer data, ReduceOp op, void* scratch) override;
  void do_broadcast(const OpTag& tag, Buffer data, int root) override;
  void do_all_to_all(const OpTag& tag, Buffer in, Buffer out) override;
  void do_barrier(const OpTag& tag) override;

  std::shared_ptr<MpiShared> shared_;
  MpiExchange exchange_;
};

/// Small data: everybody gets everything and folds it.
bool is_one_round(const Buffer& data) { return data.bytes() <= MpiExchange::kInlineBytes; }

/// Begin of rank `part`'s share of `elems`, in elements; shares begin at multiples of 16.
std::int64_t share_begin(std::int64_t elems, int part, int size) {
  const std::int64_t lines = (elems + 15) / 16;
  return std::min(elems, lines * part / size * 16);
}

std::byte* bytes_of(const Buffer& buffer) { return static_cast<std::byte*>(buffer.data); }

void MpiCommunicator::do_all_gather(const OpTag& tag, Buffer shard, Buffer full) {
  const std::int64_t bytes = shard.bytes();
  const auto peers = exchange_.prepare();
  for (int p = 0; p < size(); ++p) peers[p] = {bytes_of(shard), bytes, bytes_of(full) + p * bytes, bytes};
  copy_bytes(bytes_of(full) + rank() * bytes, shard.data, bytes);
  exchange_.run(tag);
}

void MpiCommunicator::do_reduce_scatter(const OpTag& tag, Buffer full, Buffer shard, Fold how, void* scratch) {
  const std::int64_t bytes = shard.elems * size_of(full.dtype);
  const auto peers = exchange_.prepare();
  for (int p = 0; p < size(); ++p) peers[p] = {bytes_of(full) + p * bytes, bytes, nullptr, bytes};
  exchange_.run_folding(tag, {bytes_of(full) + rank() * bytes, full.dtype, bytes_of(shard), shard.dtype, how == Fold::accumulate,
                              shard.elems, ReduceOp::sum, scratch});
}

void MpiCommunicator::do_all_reduce(const OpTag& tag, Buffer data, ReduceOp op, void* scratch) {
  auto peers = exchange_.prepare();
  if (is_one_round(data)) {
    // One round: everybody folds everything. What is sent is copied before the fold writes over it.
    for (int p = 0; p < size(); ++p) peers[p] = {bytes_of(data), data.bytes(), nullptr, data.bytes()};
    return exchange_.run_folding(tag, {bytes_of(data), data.dtype, bytes_of(data), data.dtype, false, data.elems, op, scratch});
  }
  // Two rounds: each rank folds its share, then hands it to everybody.
  const auto begin = [&](int part) { return share_begin(data.elems, part, size()) * size_of(data.dtype); };
  const std::int64_t own_begin = begin(rank()), own_bytes = begin(rank() + 1) - own_begin;
  std::byte* own = bytes_of(data) + own_begin;
  for (int p = 0; p < size(); ++p) peers[p] = {bytes_of(data) + begin(p), begin(p + 1) - begin(p), nullptr, own_bytes};
  exchange_.run_folding(tag, {own, data.dtype, own, data.dtype, false, own_bytes / size_of(data.dtype), op, scratch});
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

void MpiCommunicator::do_barrier(const OpTag& tag) {
  exchange_.prepare();
  exchange_.run(tag);
}

OpTag host_tag(std::string_view text) {
  OpTag tag;
  std::copy(text.begin(), text.end(), tag.text_.begin());
  return tag;  // hash 0: host calls meet host calls only, and need no more than their names
}

class MpiWorld final : public World {
 public:
  MpiWorld(MPI_Comm root, const WorldOptions& options, bool finalizes) : shared_(std::make_shared<MpiShared>()), finalizes_(finalizes) {
    shared_->options = options;
    root_ = std::make_unique<MpiExchange>(root, options.timeout_s);
    MPI_Comm host = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split_type(root, MPI_COMM_TYPE_SHARED, rank(), MPI_INFO_NULL, &host), "MPI_Comm_split_type");
    check_mpi(MPI_Comm_rank(host, &local_rank_), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(host, &local_size_), "MPI_Comm_size");
    check_mpi(MPI_Comm_free(&host), "MPI_Comm_free");
  }
  ~MpiWorld() override;

  int rank() const override { return root_->rank(); }
  int size() const override { return root_->size(); }
  int local_rank() const override { return local_rank_; }
  int local_size() const override { return local_size_; }
  std::string transport() const override { return "mpi"; }
  std::unique_ptr<Communicator> communicator() override { return split(0, rank()); }
  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    const auto self = std::find(ranks.begin(), ranks.end(), rank());
    ZS_CHECK(self != ranks.end(), "rank {} is not in the group it names", rank());
    return split(ranks[0], static_cast<int>(self - ranks.begin()));
  }
  Agreement agree(int code, const std::string& message) override;
  void abort(int code) noexcept override {
    if (MPI_Abort(MPI_COMM_WORLD, code) != MPI_SUCCESS) std::abort();
  }

 private:
  std::unique_ptr<Communicator> split(int color, int key) {
    MPI_Comm part = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split(root_->comm(), color, key, &part), "MPI_Comm_split");
    return std::make_unique<MpiCommunicator>(part, shared_);
  }

  std::shared_ptr<MpiShared> shared_;
  std::unique_ptr<MpiExchange> root_;  // host thread only
  bool finalizes_;
  int local_rank_ = 0, local_size_ = 1;
};

MpiWorld::~MpiWorld() {
  int finalized = 0;
  if (!finalizes_ || MPI_Finalized(&finalized) != MPI_SUCCESS || finalized) return;
  try {
    root_->prepare();
    root_->run(host_tag("the end of the job"));
    root_.reset();
    check_mpi(MPI_Finalize(), "MPI_Finalize");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "zshard: %s\n", error.what());
    abort(static_cast<int>(ExitCode::peer_lost));
  }
}

World::Agreement MpiWorld::agree(int code, const std::string& message) {
  struct Vote {
    std::int32_t code = 0, length = 0;
    std::array<char, 1000> text{};
  };
  static_assert(sizeof(Vote) <= MpiExchange::kInlineBytes);
  std::vector<Vote> votes(static_cast<std::size_t>(size()));
  Vote& own = votes[static_cast<std::size_t>(rank())];
  own.code = code;
  own.length = static_cast<std::int32_t>(std::min(message.size(), own.text.size()));
  std::copy_n(message.begin(), own.length, own.text.begin());
  const auto peers = root_->prepare();
  for (std::size_t p = 0; p < votes.size(); ++p) {
    peers[p] = {reinterpret_cast<const std::byte*>(&own), sizeof own, reinterpret_cast<std::byte*>(&votes[p]), sizeof own};
  }
  root_->run(host_tag("agree"));
  for (std::size_t p = 0; p < votes.size(); ++p) {
    const Vote& vote = votes[p];
    if (vote.code != 0) return {vote.code, std::string(vote.text.data(), static_cast<std::size_t>(vote.length)), static_cast<int>(p)};
  }
  return {};
}

}  // namespace

std::int64_t mpi_reduce_scatter_scratch_bytes(int ranks, const Buffer& full) {
  return MpiExchange::scratch_bytes(ranks, full.bytes() / ranks);
}

std::int64_t mpi_all_reduce_scratch_bytes(int rank, int ranks, const Buffer& data) {
  if (is_one_round(data)) return MpiExchange::scratch_bytes(ranks, data.bytes());
  const std::int64_t share = share_begin(data.elems, rank + 1, ranks) - share_begin(data.elems, rank, ranks);
  return MpiExchange::scratch_bytes(ranks, share * size_of(data.dtype));
}

std::unique_ptr<World> make_mpi_world(const WorldOptions& options) {
  int initialized = 0, provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Initialized(&initialized), "MPI_Initialized");
  if (initialized) {
    check_mpi(MPI_Query_thread(&provided), "MPI_Query_thread");
  } else {
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  }
  if (provided != MPI_THREAD_MULTIPLE) {
    throw Error(ExitCode::usage, fmt::format("MPI gives thread level {}, zshard needs MPI_THREAD_MULTIPLE", provided), {},
                "use an MPI built with thread support");
  }
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  MPI_Comm root = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &root), "MPI_Comm_dup");
  return std::make_unique<MpiWorld>(root, options, !initialized);
}

}  // namespace zs
