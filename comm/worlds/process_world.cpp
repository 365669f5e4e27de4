#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <sstream>

#include "comm/group_place.h"
#include "comm/mpi/mpi_world.h"
#include "comm/worlds/hier.h"
#include "comm/worlds/mpi_library.h"
#include "runtime/base/launch.h"
#include "runtime/base/parse_integer.h"
#include "runtime/base/random.h"
#include "runtime/base/standard_streams.h"

namespace zs {
namespace {

/// Processes of one or several hosts, those of one over memory that all of them have mapped. MPI has started them,
/// agrees for them and ends them.
class HostsWorld final : public World {
 public:
  HostsWorld(std::unique_ptr<MpiWorld> mpi, std::shared_ptr<ShmMemory> memory, const WorldOptions& options)
      : mpi_(std::move(mpi)),
        memory_(std::move(memory)),
        options_(options),
        map_(mpi_->hosts()),
        host_(memory_, everybody(memory_->ranks()), memory_->rank(), options) {
    const auto mates = map_.ranks_on(map_.host_of(rank()));
    host_.call_ranks({mates.begin(), mates.end()});
  }

  int rank() const override { return mpi_->rank(); }
  int size() const override { return mpi_->size(); }
  int local_rank() const override { return mpi_->local_rank(); }
  int local_size() const override { return mpi_->local_size(); }
  std::vector<int> hosts() const override { return mpi_->hosts(); }
  std::string transport() const override {
    return map_.is_one_host() ? "shm" : map_.is_one_rank_each() ? "mpi" : "hier";
  }
  bool sums_in_rank_order() const override { return options_.sums_in_rank_order; }
  Allocator* arena() override { return memory_.get(); }
  std::unique_ptr<Communicator> communicator() override {
    std::vector<int> ranks(static_cast<std::size_t>(size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return group(ranks);
  }
  std::unique_ptr<Communicator> message_communicator() override {
    auto made = std::make_unique<MpiCommunicator>(mpi_->split_off(0, rank()), options_, make_cpu_allocator());
    made->record_by(&mpi_->watchdog()->recorder(), options_.race_check_delay_ms, group_name_.child(0));
    return made;
  }
  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    const int place = place_in_group(ranks, rank(), size());
    const StatusScope status(mpi_->watchdog(), "split", StatusScope::Host::waits_for_ranks);
    auto made = make(ranks, place);
    made->record_by(&mpi_->watchdog()->recorder(), options_.race_check_delay_ms, group_name_.child(ranks[0]));
    return made;
  }
  Watchdog* watchdog() override { return mpi_->watchdog(); }
  Agreement agree(int code, const std::string& message) override { return mpi_->agree(code, message); }
  void abort(int code) noexcept override {
    memory_->abort_flag().set.store(true);
    mpi_->abort(code);
  }
  bool has_ended() const noexcept override { return memory_->abort_flag().set.load(); }

 private:
  std::unique_ptr<Communicator> make(std::span<const int> ranks, int place) {
    auto host = host_.split_off(ranks[0], place);
    if (map_.is_one_host()) return host;
    std::vector<int> hosts;
    for (const int r : ranks) hosts.push_back(map_.host_of(r));
    return make_group(mpi_->split_off(ranks[0], place), hosts, std::move(host), options_, memory_);
  }
  static std::vector<ShmMember> everybody(int ranks) {
    std::vector<ShmMember> members;
    for (int r = 0; r < ranks; ++r) members.push_back({r, {.slot = ShmMemory::kWorldSlot}});
    return members;
  }

  std::unique_ptr<MpiWorld> mpi_;  // ends last
  std::shared_ptr<ShmMemory> memory_;
  WorldOptions options_;
  HostMap map_;
  ShmCommunicator host_;  // for splits only
  GroupName group_name_;
};

/// Hosts that ZSHARD_HOSTS_OF gives, for tests: "0,0,1,1" parts the ranks of one host. Empty where it is not set.
std::vector<int> hosts_in_environment() {
  const int ranks = read_launch().size;
  const char* const text = std::getenv("ZSHARD_HOSTS_OF");
  std::vector<int> hosts;
  std::istringstream words(text == nullptr ? "" : text);
  for (std::string word; std::getline(words, word, ',');) {
    const int host = parse_integer<int>(word).value_or(-1);
    if (host < 0) hosts.clear();
    hosts.push_back(host);
    if (host < 0) break;
  }
  if (text != nullptr && (static_cast<int>(hosts.size()) != ranks || hosts.back() < 0)) {
    throw Error(ExitCode::usage, fmt::format("\"{}\" is not a host number for each of {} ranks", text, ranks),
                "ZSHARD_HOSTS_OF", "write one number a rank, as in \"0,0,1,1\", or unset it");
  }
  return hosts;
}

/// Memory that all ranks of this host have mapped, or nothing on any rank of any host, and why.
std::shared_ptr<ShmMemory> agreed_memory(MpiWorld& world, const HostMap& map, double timeout_s, std::string& why) {
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
  const auto mates = map.ranks_on(map.host_of(world.rank()));
  if (!attempt([&] {
        memory = std::make_shared<ShmMemory>(map.place_of(world.rank()), static_cast<int>(mates.size()), timeout_s);
      }))
    return nullptr;
  std::vector<ShmInvitation> all(static_cast<std::size_t>(world.size())), invitations;
  all[static_cast<std::size_t>(world.rank())] = memory->invitation();
  world.exchange(std::as_writable_bytes(std::span(all)));
  for (const int mate : mates) invitations.push_back(all[static_cast<std::size_t>(mate)]);
  if (!attempt([&] { memory->map_peers(invitations); })) return nullptr;
  return memory;
}

}  // namespace

MpiLibrary mpi_of_this_build() {
#ifdef OPEN_MPI
  return MpiLibrary::open_mpi;
#else
  return MpiLibrary::mpich;
#endif
}

std::string chosen_transport(std::string_view wanted) {
  const char* const from_environment = std::getenv("ZSHARD_TRANSPORT");
  if (wanted == "auto" && from_environment != nullptr) wanted = from_environment;
  if (wanted != "mpi") hosts_in_environment();  // throws where the variable is wrong
  for (const char* const known : {"auto", "hier", "shm", "mpi", "null"}) {
    if (wanted == known) return known;
  }
  throw Error(ExitCode::usage, fmt::format("no transport is called \"{}\"", wanted), "ZSHARD_TRANSPORT",
              "use auto, hier, shm, mpi or null");
}

namespace {

/// Wish of one rank: the transport it wants, "" for any, and what it says of the hosts.
struct Wish {
  std::array<char, 8> transport{};
  std::uint64_t hosts = 0;
  bool operator==(const Wish&) const = default;
};

/// Transport that all ranks want, or mpi: in silence where one of them wants any, else rank 0 says who wants what.
std::string agreed_transport(MpiWorld& world, std::string_view wanted, std::span<const int> hosts) {
  std::vector<Wish> wishes(static_cast<std::size_t>(world.size()));
  Wish& own = wishes[static_cast<std::size_t>(world.rank())];
  wanted.copy(own.transport.data(), own.transport.size() - 1);
  own.hosts = hash_name({reinterpret_cast<const char*>(hosts.data()), hosts.size_bytes()});
  world.exchange(std::as_writable_bytes(std::span(wishes)));
  if (std::any_of(wishes.begin(), wishes.end(), [](const Wish& wish) { return wish.transport[0] == 0; })) return "mpi";
  const auto other =
      std::find_if(wishes.begin(), wishes.end(), [&](const Wish& wish) { return wish != wishes.front(); });
  if (other == wishes.end()) return std::string(wanted);
  if (world.rank() == 0) {
    const Wish& first = wishes.front();
    const std::string difference =
        other->transport == first.transport
            ? "has another ZSHARD_HOSTS_OF than rank 0"
            : fmt::format("wants {}, rank 0 {}", other->transport.data(), first.transport.data());
    print_to_stderr("zshard: the ranks start differently, transport mpi is used: rank {} {}\n", other - wishes.begin(),
                    difference);
  }
  return "mpi";
}

/// Bytes that Open MPI's own shared memory takes for each rank of a host; with less room it uses TCP there, without a
/// word.
constexpr std::int64_t kOpenMpiSegmentBytes = std::int64_t{4} << 20;

void warn_of_small_dev_shm(const World& world) {
  struct statvfs status {};
  if (world.local_rank() != 0 || world.local_size() == 1 || statvfs("/dev/shm", &status) != 0) return;
  const auto free_bytes = static_cast<std::int64_t>(status.f_bavail) * static_cast<std::int64_t>(status.f_frsize);
  if (free_bytes >= kOpenMpiSegmentBytes) return;  // the ranks' own are taken already
  print_to_stderr(
      "zshard: /dev/shm has {} KiB left: Open MPI's messages within this host may go over TCP, and more slowly\n",
      free_bytes >> 10);
}

std::unique_ptr<World> start_process_world(const WorldOptions& options, std::string_view wanted) {
  const std::string own = wanted.empty() ? "" : chosen_transport(wanted);
  std::vector<int> hosts;
  if (own == "auto" || own == "hier" || own == "shm") hosts = hosts_in_environment();
  auto mpi = start_mpi_world(options);
  const std::string chosen = agreed_transport(*mpi, own, hosts);
  if (chosen == "mpi") return mpi;
  if (chosen == "null") return make_null_world(std::move(mpi));
  if (!hosts.empty()) mpi->call_hosts(std::move(hosts));
  const HostMap map(mpi->hosts());
  if (chosen == "auto" && map.is_one_rank_each()) return mpi;
  std::string why = "the ranks are on several hosts; comm.transport = \"hier\" would use it inside each";
  const bool is_possible = chosen != "shm" || map.is_one_host();
  if (auto memory = is_possible ? agreed_memory(*mpi, map, options.timeout_s, why) : nullptr) {
    return std::make_unique<HostsWorld>(std::move(mpi), std::move(memory), options);
  }
  if (mpi->rank() == 0) print_to_stderr("zshard: no shared memory, transport mpi is used: {}\n", why);
  return mpi;
}

}  // namespace

std::unique_ptr<World> make_process_world(const WorldOptions& options, std::string_view wanted) {
  auto world = start_process_world(options, wanted);
  if (world->transport() == "mpi") warn_of_small_dev_shm(*world);
  world->watchdog()->enter(Phase::idle);
  return world;
}

}  // namespace zs
