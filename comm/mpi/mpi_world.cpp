#include "comm/mpi/mpi_world.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "comm/group_place.h"
#include "comm/host/host_map.h"
#include "comm/mpi/mpi_communicator.h"
#include "runtime/base/launch.h"
#include "runtime/base/random.h"
#include "runtime/base/standard_streams.h"

namespace zs {
namespace {

OpTag host_tag(std::string_view text) {
  OpTag tag;
  tag.hash = hash_name(text);  // host calls meet host calls only
  std::copy(text.begin(), text.end(), tag.text_.begin());
  return tag;
}

void prefer(const char* name, const std::string& value) {
  if (setenv(name, value.c_str(), 0) != 0) throw std::bad_alloc();
}

/// Settings of Open MPI, and the network that it and NCCL use, where the user has not set them.
void prefer_settings(const std::string& interfaces) {
  constexpr std::array<std::pair<const char*, const char*>, 3> kPreferred{{
      // No stack traces: the other ranks report one that dies.
      {"OMPI_MCA_opal_signal", ""},
      // Without "put": a large message in one piece holds up the answer to the peer's own, and the two directions of a
      // link take turns.
      {"OMPI_MCA_btl_tcp_flags", "send,inplace,need-ack"},
      // Little waits in a socket ahead of the answer to the peer's message (docs/decisions/0041).
      {"OMPI_MCA_btl_tcp_sndbuf", "262144"},
  }};
  for (const auto& [name, value] : kPreferred) prefer(name, value);
  if (interfaces.empty()) return;
  // Open MPI takes one of the two lists.
  if (std::getenv("OMPI_MCA_btl_tcp_if_exclude") == nullptr) prefer("OMPI_MCA_btl_tcp_if_include", interfaces);
  prefer("NCCL_SOCKET_IFNAME", "=" + interfaces);  // these names, not all that begin so
}

constexpr auto kLookAtPeersEvery = std::chrono::milliseconds(1);

/// MPI_Abort waits for the launcher, which may be stopped or out of reach.
void exit_if_launcher_hangs(int code) noexcept {
  static constexpr auto kGrace = std::chrono::seconds(5);  // a watchdog grants it as much
  try {
    std::thread([code] {
      std::this_thread::sleep_for(kGrace);
      _exit(code);
    }).detach();
  } catch (const std::exception&) {
    errno = 0;  // no thread: it is left to the launcher
  }
}

/// Hydra ends at once, without what its ranks have just said: the reason must be through before it hears of the end.
void let_launcher_read() noexcept {
  static constexpr auto kLongEnough = std::chrono::milliseconds(200);
  try {
    if (read_launch().manager == ProcessManager::pmi) std::this_thread::sleep_for(kLongEnough);
  } catch (const std::exception&) {
    errno = 0;  // no memory: the line may be lost
  }
}

/// Text of Open MPI about MPI_Abort, which mpirun -q hides, would stand behind the line that says why.
void hide_text_of_abort() noexcept {
  try {
    if (read_launch().manager == ProcessManager::open_mpi) return;
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (nowhere < 0 || dup2(nowhere, STDERR_FILENO) < 0) errno = 0;
  } catch (const std::exception&) {
    errno = 0;  // no memory: the text is no harm
  }
}

}  // namespace

MpiWorld::MpiWorld(MPI_Comm root, const WorldOptions& options, bool finalizes, std::unique_ptr<Watchdog> watchdog)
    : watchdog_(std::move(watchdog)),
      options_(options),
      root_(std::make_unique<MpiExchange>(root, options.timeout_s)),
      finalizes_(finalizes) {
  MPI_Comm host = MPI_COMM_NULL;
  {
    const StatusScope status(watchdog_.get(), "MPI_Comm_split_type", StatusScope::Host::waits_for_ranks);
    check_mpi(MPI_Comm_split_type(root, MPI_COMM_TYPE_SHARED, rank(), MPI_INFO_NULL, &host), "MPI_Comm_split_type");
  }
  check_mpi(MPI_Comm_rank(host, &local_rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(host, &local_size_), "MPI_Comm_size");
  watchdog_->note_ranks(size(), local_size_);
  hosts_ = find_hosts(host);
  check_mpi(MPI_Comm_free(&host), "MPI_Comm_free");
  if (!HostMap(hosts_).is_one_host()) join_watchers();
}

/// Collective, whatever this rank's own options say.
void MpiWorld::join_watchers() {
  std::unique_ptr<HeartbeatExchange> heartbeats;
  if (options_.watch.exchanges_heartbeats) heartbeats = std::make_unique<HeartbeatExchange>();
  std::vector<HeartbeatExchange::Offer> offers(static_cast<std::size_t>(size()));
  if (heartbeats) offers[static_cast<std::size_t>(rank())] = heartbeats->offer();
  exchange(std::as_writable_bytes(std::span(offers)));
  if (!heartbeats) return;
  if (!heartbeats->problem().empty() && local_rank_ == 0) {
    const std::string loss = rank() == 0 ? "hosts do not hear of each other's ranks"
                                         : fmt::format("what rank {} does is not known on other hosts", rank());
    print_to_stderr("{}: warning: {}: {}\n", options_.watch.program, loss, heartbeats->problem());
  }
  if (!heartbeats->problem().empty() || offers.front().port == 0) return;
  heartbeats->join(rank(), std::move(offers), HostMap(hosts_));
  watchdog_->join_hosts(std::move(heartbeats));
}

/// Names each host by its lowest rank.
std::vector<int> MpiWorld::find_hosts(MPI_Comm host) {
  std::vector<int> hosts(static_cast<std::size_t>(size()));
  int& own = hosts[static_cast<std::size_t>(rank())] = rank();
  {
    const StatusScope status(watchdog_.get(), "MPI_Bcast", StatusScope::Host::waits_for_ranks);
    check_mpi(MPI_Bcast(&own, 1, MPI_INT, 0, host), "MPI_Bcast");
  }
  exchange(std::as_writable_bytes(std::span(hosts)));
  const HostMap map(hosts);
  for (int r = 0; r < size(); ++r) hosts[static_cast<std::size_t>(r)] = map.host_of(r);
  return hosts;
}

std::unique_ptr<Communicator> MpiWorld::group(std::span<const int> ranks) {
  const int place = place_in_group(ranks, rank(), size());
  return split(ranks[0], place);
}

std::unique_ptr<Communicator> MpiWorld::split(int color, int key) {
  auto part = std::make_unique<MpiCommunicator>(split_off(color, key), options_, arena_);
  part->record_by(&watchdog_->recorder(), options_.race_check_delay_ms, group_name_.child(color));
  return part;
}

MPI_Comm MpiWorld::split_off(int color, int key) {
  const StatusScope status(watchdog_.get(), "MPI_Comm_split", StatusScope::Host::waits_for_ranks);
  root_->prepare();
  root_->run(host_tag("split"));
  return root_->split_off(color, key);
}

void MpiWorld::abort(int code) noexcept {
  watchdog_->note_reported();
  watchdog_->stand_down();
  exit_if_launcher_hangs(code);
  let_launcher_read();
  hide_text_of_abort();
  if (MPI_Abort(MPI_COMM_WORLD, code) != MPI_SUCCESS) std::abort();
}

void MpiWorld::exchange(std::span<std::byte> all) {
  const std::int64_t bytes = std::ssize(all) / size();
  ZS_CHECK(bytes <= kInlineBytes, "{} bytes a rank do not fit a first message", bytes);
  const auto peers = root_->prepare();
  for (int p = 0; p < size(); ++p) peers[p] = {all.data() + rank() * bytes, bytes, all.data() + p * bytes, bytes};
  const StatusScope status(watchdog_.get(), "agreement of all ranks", StatusScope::Host::waits_for_ranks);
  root_->run(host_tag(fmt::format("agree({} bytes)", bytes)));
}

/// An exception that leaves it ends the process, and that the job: no peer is waited for, or whoever catches it would
/// not come to say why.
MpiWorld::~MpiWorld() {
  if (watchdog_->is_unwound()) return;
  watchdog_->leave();
  int finalized = 0;
  if (!finalizes_ || MPI_Finalized(&finalized) != MPI_SUCCESS || finalized) return;
  try {
    {
      const StatusScope status(watchdog_.get(), "the end of the job", StatusScope::Host::waits_for_ranks);
      root_->prepare();
      root_->run(host_tag("the end of the job"));
    }
    root_.reset();
    watchdog_->faults().hit("finalize");
    const StatusScope status(watchdog_.get(), kFinalizing, StatusScope::Host::waits_for_ranks);
    check_mpi(MPI_Finalize(), "MPI_Finalize");
    watchdog_->faults().hit("finalized");
    watchdog_->note_finalized();
    while (watchdog_->has_finalizing_peer()) std::this_thread::sleep_for(kLookAtPeersEvery);
  } catch (const std::exception& error) {
    const auto* const known = dynamic_cast<const Error*>(&error);
    const Error reported = known != nullptr ? *known : Error(ExitCode::peer_lost, error.what());
    watchdog_->report(reported, fmt::format("rank {}", watchdog_->page().rank.load()));
    abort(static_cast<int>(reported.code()));
  }
}

World::Agreement MpiWorld::agree(int code, const std::string& message) {
  struct Vote {
    std::int32_t code = 0, length = 0;
    std::array<char, 1000> text{};
  };
  std::vector<Vote> votes(static_cast<std::size_t>(size()));
  Vote& own = votes[static_cast<std::size_t>(rank())];
  own.code = code;
  own.length = static_cast<std::int32_t>(std::min(message.size(), own.text.size()));
  std::copy_n(message.begin(), own.length, own.text.begin());
  exchange(std::as_writable_bytes(std::span(votes)));
  for (std::size_t p = 0; p < votes.size(); ++p) {
    const Vote& vote = votes[p];
    if (vote.code != 0)
      return {vote.code, std::string(vote.text.data(), static_cast<std::size_t>(vote.length)), static_cast<int>(p)};
  }
  return {};
}

std::string mpi_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  check_mpi(MPI_Get_library_version(text.data(), &length), "MPI_Get_library_version");
  std::string_view whole(text.data());
  whole = whole.substr(0, whole.find_first_of(",\n"));
  constexpr std::string_view kMpich = "MPICH Version:";  // and blanks, then the number
  if (!whole.starts_with(kMpich)) return std::string(whole);
  return fmt::format("MPICH v{}", whole.substr(std::min(whole.size(), whole.find_first_not_of(" \t", kMpich.size()))));
}

std::unique_ptr<MpiWorld> start_mpi_world(const WorldOptions& options) {
  if (read_launch().has_several_ranks()) prefer_settings(options.interfaces);  // while there is one thread
  auto watchdog = std::make_unique<Watchdog>(options.watch);
  watchdog->faults().hit("init");
  int initialized = 0, provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Initialized(&initialized), "MPI_Initialized");
  if (initialized) {
    check_mpi(MPI_Query_thread(&provided), "MPI_Query_thread");
  } else {
    const StatusScope status(watchdog.get(), kInitializing, StatusScope::Host::waits_for_ranks);
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  }
  if (provided != MPI_THREAD_MULTIPLE) {
    throw Error(ExitCode::usage, fmt::format("MPI gives thread level {}, zshard needs MPI_THREAD_MULTIPLE", provided),
                {}, "use an MPI built with thread support");
  }
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  MPI_Comm root = MPI_COMM_NULL;
  {
    const StatusScope status(watchdog.get(), "MPI_Comm_dup", StatusScope::Host::waits_for_ranks);
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &root), "MPI_Comm_dup");
  }
  watchdog->find_peers();
  watchdog->faults().hit("connected");
  return std::make_unique<MpiWorld>(root, options, !initialized, std::move(watchdog));
}

std::unique_ptr<World> make_mpi_world(const WorldOptions& options) {
  auto world = start_mpi_world(options);
  world->watchdog()->enter(Phase::idle);
  return world;
}

}  // namespace zs
