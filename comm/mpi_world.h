#pragma once

#include <memory>
#include <span>

#include "comm/mpi_exchange.h"
#include "comm/world.h"

namespace zs {

/// The ranks that mpirun started. Owns its copy of MPI_COMM_WORLD, and MPI itself where it has initialised it. Thread rules: World's.
class MpiWorld final : public World {
 public:
  /// Takes the communicator over.
  MpiWorld(MPI_Comm root, const WorldOptions& options, bool finalizes);
  ~MpiWorld() override;

  int rank() const override { return root_->rank(); }
  int size() const override { return root_->size(); }
  int local_rank() const override { return local_rank_; }
  int local_size() const override { return local_size_; }
  std::string transport() const override { return "mpi"; }
  std::unique_ptr<Communicator> communicator() override { return split(0, rank()); }
  std::unique_ptr<Communicator> group(std::span<const int> ranks) override;
  Agreement agree(int code, const std::string& message) override;
  void abort(int code) noexcept override;

  /// Collective, blocks the host: everybody gets everybody's bytes, in rank order; each has put its own in its place. Few bytes.
  void exchange(std::span<std::byte> all);

 private:
  std::unique_ptr<Communicator> split(int color, int key);

  WorldOptions options_;
  std::shared_ptr<Allocator> arena_ = make_cpu_allocator();
  std::unique_ptr<MpiExchange> root_;  // host thread only
  bool finalizes_;
  int local_rank_ = 0, local_size_ = 1;
};

/// What make_mpi_world makes.
std::unique_ptr<MpiWorld> start_mpi_world(const WorldOptions& options);

/// Takes the communicator over.
std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm comm, const WorldOptions& options, std::shared_ptr<Allocator> arena);

}  // namespace zs
