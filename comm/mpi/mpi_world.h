#pragma once

#include <memory>
#include <span>
#include <vector>

#include "comm/health/watchdog.h"
#include "comm/mpi/mpi_exchange.h"
#include "comm/world.h"

namespace zs {

/// The ranks that mpirun started. Owns its copy of MPI_COMM_WORLD, and MPI itself where it has initialised it. Thread
/// rules: World's.
class MpiWorld final : public World {
 public:
  /// Takes the communicator over.
  MpiWorld(MPI_Comm root, const WorldOptions& options, bool finalizes, std::unique_ptr<Watchdog> watchdog);
  ~MpiWorld() override;

  int rank() const override { return root_->rank(); }
  int size() const override { return root_->size(); }
  int local_rank() const override { return local_rank_; }
  int local_size() const override { return local_size_; }
  std::vector<int> hosts() const override { return hosts_; }
  std::string transport() const override { return "mpi"; }
  std::unique_ptr<Communicator> communicator() override { return split(0, rank()); }
  std::unique_ptr<Communicator> group(std::span<const int> ranks) override;
  Agreement agree(int code, const std::string& message) override;
  void abort(int code) noexcept override;
  Watchdog* watchdog() override { return watchdog_.get(); }

  /// Collective, blocks the host: everybody gets everybody's bytes, in rank order; each has put its own in its place.
  /// Few bytes.
  void exchange(std::span<std::byte> all);
  /// Has hosts() say so, before anything is made of it.
  void call_hosts(std::vector<int> hosts) { hosts_ = std::move(hosts); }
  /// Collective, blocks the host: the MPI communicator of those that name the same color, ordered by (key, rank).
  /// MPI_Comm_split has no deadline: all ranks meet before it.
  MPI_Comm split_off(int color, int key);

 private:
  std::unique_ptr<Communicator> split(int color, int key);
  std::vector<int> find_hosts(MPI_Comm host);
  void join_watchers();

  std::unique_ptr<Watchdog> watchdog_;  // ends last
  GroupName group_name_;
  WorldOptions options_;
  std::shared_ptr<Allocator> arena_ = make_cpu_allocator();
  std::unique_ptr<MpiExchange> root_;  // host thread only
  bool finalizes_;
  int local_rank_ = 0, local_size_ = 1;
  std::vector<int> hosts_;
};

/// Starts the world that make_mpi_world makes.
std::unique_ptr<MpiWorld> start_mpi_world(const WorldOptions& options);

}  // namespace zs
