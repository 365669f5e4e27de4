#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/health/watch_options.h"
#include "runtime/base/launch.h"

namespace zs {

class Watchdog;

/// All ranks of a job, seen from one of them. Owned by the program's main function (or by run_local_world); one host
/// thread uses it, except `abort`, which any thread may call. Outlives every communicator that came from it.
class World {
 public:
  virtual ~World() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Position among, and number of, the ranks on this host.
  virtual int local_rank() const = 0;
  virtual int local_size() const = 0;
  virtual std::string transport() const = 0;
  /// The host of each rank, numbered from 0 in the order of their first ranks.
  virtual std::vector<int> hosts() const { return std::vector<int>(static_cast<std::size_t>(size())); }
  /// WorldOptions::sums_in_rank_order, where it makes a difference.
  virtual bool sums_in_rank_order() const { return false; }
  /// Memory that can be communicated without a copy, for devices of this rank to draw on (DeviceOptions::memory); null
  /// where ordinary memory is as good. Outlives communicators and devices.
  virtual Allocator* arena() { return nullptr; }

  /// Collective, blocks the host: a communicator over all ranks, for one stream.
  virtual std::unique_ptr<Communicator> communicator() = 0;
  /// Collective: a communicator over buffers of the hosts' memory, whatever communicator() is for.
  virtual std::unique_ptr<Communicator> host_communicator() { return communicator(); }
  /// Collective: a communicator by messages alone, as over transport mpi, where processes of one host otherwise read
  /// each other's memory; of other worlds as communicator(). For comparisons.
  virtual std::unique_ptr<Communicator> message_communicator() { return communicator(); }
  /// Collective over all ranks of the world, blocks the host: a communicator over `ranks` (of the world, in the order
  /// wanted), for one stream. Every rank names the group that it belongs to itself; the groups are disjoint.
  virtual std::unique_ptr<Communicator> group(std::span<const int> ranks) = 0;

  /// Collective, blocks the host: every rank gives its (code, message); returns the code and message of the lowest rank
  /// whose code is not zero, on every rank the same, or (0, "", -1). Messages are cut to 1000 bytes.
  struct Agreement {
    int code = 0;
    std::string message;
    int rank = -1;
  };
  virtual Agreement agree(int code, const std::string& message) = 0;

  /// Ends every rank of the job with this exit code. Does not return to a useful state: mpi ends the process; local
  /// aborts the group, so that every wait of every rank throws.
  virtual void abort(int code) noexcept = 0;
  /// True if a rank has ended the job, as far as this one can know without asking: nobody need wait for the others. Any
  /// thread.
  virtual bool has_ended() const noexcept { return false; }

  /// Watchdog over this rank; null where there is none (a plan's ranks).
  virtual Watchdog* watchdog() { return nullptr; }
};

/// Limits on how long ranks wait for each other, and the watch over them.
struct WorldOptions {
  double timeout_s = 300;  ///< longest wait for a peer inside one operation
  /// Sums are over all ranks of a group, one after the other, also where hosts could sum up first
  bool sums_in_rank_order = false;
  /// Above 0, for debugging: operations run on private copies and end up to so many milliseconds later, so that whoever
  /// touches a buffer in use is found (comm/buffer_race_check.h).
  double race_check_delay_ms = 0;
  WatchOptions watch = {};
  /// Network interfaces that Open MPI's TCP and NCCL use between hosts, "eth0,eth1", where the user has not told them;
  /// empty: all that lead there.
  std::string interfaces = {};
};

/// One rank, no transport, no copies where input and output are the same buffer.
std::unique_ptr<World> make_single_world(const WorldOptions& options);

/// This rank of a job that mpirun started. The first call initialises MPI (thread level multiple); destroying the World
/// finalises it, after a barrier with the timeout: if a peer does not come, the job is aborted with peer_lost instead
/// of hanging in MPI_Finalize. Only one exists in a process. Where the program has initialised MPI itself, it finalises
/// it too.
std::unique_ptr<World> make_mpi_world(const WorldOptions& options);

/// Transport that `wanted` and the environment variable ZSHARD_TRANSPORT come to: "auto", "hier", "shm", "mpi" or
/// "null". Error(usage) for anything else, and where ZSHARD_HOSTS_OF makes no sense for a transport that asks it.
std::string chosen_transport(std::string_view wanted);
/// World of this process over the transport that is `wanted`. "hier": chosen for every group by where its ranks are;
/// shared memory, "shm", where all are on one host, messages, "mpi", where each is alone on its own, and both in their
/// places where there are several hosts with several ranks. "auto" is what ZSHARD_TRANSPORT says, else hier; for a
/// single rank mpi. The transport() of a hier world is the name of what it came to for all ranks. "null" is
/// make_null_world. Where shared memory cannot be had on every rank, or ranks want different transports, all use mpi,
/// and rank 0 says so in one line; in silence where a rank wants "", which is for one that has something else to tell
/// the others.
std::unique_ptr<World> make_process_world(const WorldOptions& options, std::string_view wanted = "auto");

/// `ranks` threads of this process as ranks: runs `body(world)` on each and returns when all have ended. The first
/// exception is thrown again: causes before lost peers before GroupEnded, then the lowest rank. Waiting ranks wake as
/// soon as one throws.
void run_local_world(int ranks, const WorldOptions& options, const std::function<void(World&)>& body);

/// Transport that moves the bytes between ranks.
enum class Transport : std::uint8_t { local, mpi, shm, hier, null, nccl, staged };
/// Description for people: "hier (shm inside 2 hosts, mpi across)", else the name alone.
std::string describe_transport(const World& world);
/// Transport that `World::transport()` names; local where the world has no peers.
Transport transport_of(const World& world);

/// Facts about a world that the scratch of its operations depends on.
struct TransportInfo {
  Transport transport = Transport::local;
  std::vector<int> hosts = {};  ///< host of each rank, for hier
  bool sums_in_rank_order = false;
};

/// Facts that a meta world needs to stand for `world`.
TransportInfo transport_info_of(const World& world);

/// A rank that is said to be `rank` of `size`, for the meta device: operations are declared and checked, nothing moves.
/// Their scratch is that of the transport which this world stands for. Nobody knows the other ranks' colours, so
/// `split` only makes duplicates (0, rank); `group` makes any group.
std::unique_ptr<World> make_meta_world(int rank, int size, TransportInfo stands_for = {});

/// The ranks of `real`, which must outlive it, whose collectives move nothing and wait for nobody, so that what they
/// write keeps what it held: for finding out what a step takes without communication. Like the meta world's, its
/// communicators can only be duplicated. It has no windows.
std::unique_ptr<World> make_null_world(World& real);
std::unique_ptr<World> make_null_world(std::unique_ptr<World> real);

/// Launch of this process, read off the environment, before MPI is touched: without a launcher, or with one that is not
/// mpirun and has started one rank, that of a process alone. Throws Error(usage) when a launcher has started several
/// ranks that this program's MPI cannot connect; it says the right command for that launcher.
Launch detect_launch();

/// Version of the MPI library that this process has loaded: "Open MPI v4.1.4"; "no" and why for a program without. May
/// be asked before MPI has started.
std::string mpi_version();

}  // namespace zs
