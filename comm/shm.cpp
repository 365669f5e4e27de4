#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "comm/mpi_world.h"
#include "comm/shm_memory.h"

namespace zs {
namespace {

/// One rank of a group: its rank in the world, its seat there, and where the seat's counters stood when the group was made.
struct Member {
  int world_rank = 0;
  ShmSeat::Split split = {};
};

/// The processes of one host, over memory that all of them have mapped. Owns its seat. Thread and stream rules: Communicator's.
class ShmCommunicator final : public DirectCommunicator {
 public:
  ShmCommunicator(std::shared_ptr<ShmMemory> memory, std::vector<Member> members, int rank, const WorldOptions& options);
  ~ShmCommunicator() override;

  const char* transport() const override { return "shm"; }
  Allocator& arena() override { return *memory_; }
  bool prefers_arena() const override { return true; }
  std::unique_ptr<Communicator> split(int color, int key) override;

 private:
  static MeetingPlace place(const ShmMemory& memory, const std::vector<Member>& members, bool is_host);
  static DirectGroup view(const ShmMemory& memory, const std::vector<Member>& members);
  std::byte* staging() override;
  ShmSeat& seat(int rank) const {
    const Member& member = members_[static_cast<std::size_t>(rank)];
    return memory_->seat(member.world_rank, member.split.seat);
  }

  std::shared_ptr<ShmMemory> memory_;
  std::vector<Member> members_;
  WorldOptions options_;
  MeetingPlace host_;
  void* staging_ = nullptr;
};

ShmCommunicator::ShmCommunicator(std::shared_ptr<ShmMemory> memory, std::vector<Member> members, int rank, const WorldOptions& options)
    : DirectCommunicator(rank, options.timeout_s, view(*memory, members)),
      memory_(std::move(memory)),
      members_(std::move(members)),
      options_(options),
      host_(place(*memory_, members_, true)) {}

ShmCommunicator::~ShmCommunicator() {
  if (staging_ != nullptr) memory_->deallocate(staging_, kStagingBytes);
  memory_->give_back_seat(members_[static_cast<std::size_t>(rank())].split.seat);
}

MeetingPlace ShmCommunicator::place(const ShmMemory& memory, const std::vector<Member>& members, bool is_host) {
  std::vector<SeatOf> seats;
  std::vector<int> ranks;
  for (const auto& [world_rank, split] : members) {
    ShmSeat& seat = memory.seat(world_rank, split.seat);
    seats.push_back(is_host ? SeatOf{&seat.host, split.host_base} : SeatOf{&seat.ops, split.ops_base});
    ranks.push_back(world_rank);
  }
  const auto has_died = [&memory, ranks = std::move(ranks)](int rank) { return memory.has_died(ranks[static_cast<std::size_t>(rank)]); };
  return {std::move(seats), memory.poison(), has_died};
}

DirectGroup ShmCommunicator::view(const ShmMemory& memory, const std::vector<Member>& members) {
  DirectGroup made{place(memory, members, false), {}, {}};
  for (const auto& [world_rank, split] : members) {
    made.posts.push_back(&memory.seat(world_rank, split.seat).op);
    made.memory.push_back(memory.memory_of(world_rank));
  }
  return made;
}

std::byte* ShmCommunicator::staging() {
  if (staging_ == nullptr) staging_ = memory_->allocate(kStagingBytes);
  return static_cast<std::byte*>(staging_);
}

std::unique_ptr<Communicator> ShmCommunicator::split(int color, int key) {
  const std::int64_t number = memory_->take_seat();
  const ShmSeat& fresh = memory_->seat(memory_->rank(), number);
  std::vector<std::pair<std::int64_t, int>> order;  // (key, rank) of this rank's color
  std::vector<Member> members;
  {
    Visit visit(host_, who("split"), seat(rank()).split, {color, key, number, fresh.ops.arrived.load(), fresh.host.arrived.load()});
    visit.check_alive();
    for (int r = 0; r < size(); ++r) {
      if (seat(r).split.color == color) order.emplace_back(seat(r).split.key, r);
    }
    std::sort(order.begin(), order.end());
    for (const auto& [unused, r] : order) members.push_back({members_[static_cast<std::size_t>(r)].world_rank, seat(r).split});
    visit.finish();
  }
  const auto self = std::find(order.begin(), order.end(), std::pair(std::int64_t{key}, rank()));
  return std::make_unique<ShmCommunicator>(memory_, std::move(members), static_cast<int>(self - order.begin()), options_);
}

/// All ranks are processes of this host. MPI has started them, agrees for them and ends them.
class ShmWorld final : public World {
 public:
  ShmWorld(std::unique_ptr<MpiWorld> mpi, std::shared_ptr<ShmMemory> memory, const WorldOptions& options)
      : mpi_(std::move(mpi)), memory_(std::move(memory)), root_(memory_, everybody(*mpi_), mpi_->rank(), options) {}

  int rank() const override { return mpi_->rank(); }
  int size() const override { return mpi_->size(); }
  int local_rank() const override { return mpi_->local_rank(); }
  int local_size() const override { return mpi_->local_size(); }
  std::string transport() const override { return "shm"; }
  Allocator* arena() override { return memory_.get(); }
  std::unique_ptr<Communicator> communicator() override { return root_.split(0, rank()); }
  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    const auto self = std::find(ranks.begin(), ranks.end(), rank());
    ZS_CHECK(self != ranks.end(), "rank {} is not in the group it names", rank());
    return root_.split(ranks[0], static_cast<int>(self - ranks.begin()));
  }
  Agreement agree(int code, const std::string& message) override { return mpi_->agree(code, message); }
  void abort(int code) noexcept override {
    memory_->poison().set.store(true);
    mpi_->abort(code);
  }

 private:
  static std::vector<Member> everybody(const World& world) {
    std::vector<Member> members;
    for (int r = 0; r < world.size(); ++r) members.push_back({r, {.seat = ShmMemory::kWorldSeat}});
    return members;
  }

  std::unique_ptr<MpiWorld> mpi_;  // ends last
  std::shared_ptr<ShmMemory> memory_;
  ShmCommunicator root_;  // for splits only
};

/// Memory that all ranks have mapped, or nothing on any of them, and why.
std::shared_ptr<ShmMemory> agreed_memory(MpiWorld& world, std::string& why) {
  std::shared_ptr<ShmMemory> memory;
  std::string problem;
  const auto attempt = [&](const auto& part) {
    if (problem.empty()) try {
        part();
      } catch (const Error& error) {
        problem = error.what();
      }
    why = world.agree(problem.empty() ? 0 : 1, problem).message;
    return why.empty();
  };
  if (!attempt([&] { memory = std::make_shared<ShmMemory>(world.rank(), world.size()); })) return nullptr;
  std::vector<ShmInvitation> invitations(static_cast<std::size_t>(world.size()));
  invitations[static_cast<std::size_t>(world.rank())] = memory->invitation();
  world.exchange(std::as_writable_bytes(std::span(invitations)));
  if (!attempt([&] { memory->map_peers(invitations); })) return nullptr;
  return memory;
}

}  // namespace

std::string chosen_transport(std::string_view wanted) {
  const char* const from_environment = std::getenv("ZSHARD_TRANSPORT");
  if (wanted == "auto" && from_environment != nullptr) wanted = from_environment;
  if (wanted != "auto" && wanted != "mpi" && wanted != "shm")
    throw Error(ExitCode::usage, fmt::format("no transport is called \"{}\"", wanted), "ZSHARD_TRANSPORT", "use auto, mpi or shm");
  return std::string(wanted);
}

std::unique_ptr<World> make_process_world(const WorldOptions& options, std::string_view wanted) {
  const std::string chosen = chosen_transport(wanted);
  auto mpi = start_mpi_world(options);
  if (chosen == "mpi" || (chosen == "auto" && mpi->size() == 1)) return mpi;
  std::string why = "the ranks are on several hosts";
  const bool is_one_host = mpi->agree(mpi->local_size() == mpi->size() ? 0 : 1, "").code == 0;
  if (auto memory = is_one_host ? agreed_memory(*mpi, why) : nullptr) {
    return std::make_unique<ShmWorld>(std::move(mpi), std::move(memory), options);
  }
  const bool is_expected = chosen == "auto" && !is_one_host;
  if (mpi->rank() == 0 && !is_expected) fmt::print(stderr, "zshard: no shared memory, transport mpi is used: {}\n", why);
  return mpi;
}

}  // namespace zs
