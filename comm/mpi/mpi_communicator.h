#pragma once

#include <memory>

#include "comm/mpi/mpi_exchange.h"
#include "comm/world.h"

namespace zs {

/// Processes of any hosts, which exchange messages. Thread and stream rules: Communicator's.
class MpiCommunicator : public Communicator {
 public:
  /// Takes the communicator over.
  MpiCommunicator(MPI_Comm comm, const WorldOptions& options, std::shared_ptr<Allocator> arena)
      : options_(options), arena_(std::move(arena)), exchange_(comm, options.timeout_s) {}
  ~MpiCommunicator() override { operations_.await(); }

  int rank() const override { return exchange_.rank(); }
  int size() const override { return exchange_.size(); }
  const char* transport() const override { return "mpi"; }
  Allocator& arena() override { return *arena_; }
  std::int64_t message_bytes() const override { return exchange_.sent_bytes(); }
  std::unique_ptr<Communicator> split(int color, int key) override;

 protected:
  const WorldOptions& options() const { return options_; }
  const std::shared_ptr<Allocator>& shared_arena() const { return arena_; }
  MpiExchange& exchange() { return exchange_; }
  MPI_Comm split_off(int color, int key) const { return exchange_.split_off(color, key); }

  std::int64_t reduce_scatter_scratch_bytes(const Buffer& full, const Buffer&, ReduceInto) const override {
    return mpi_reduce_scatter_scratch_bytes(size(), full);
  }
  std::int64_t all_reduce_scratch_bytes(const Buffer& data) const override {
    return mpi_all_reduce_scratch_bytes(rank(), size(), data);
  }

  void do_all_gather(const OpTag& tag, Buffer shard, Buffer full) override;
  void do_reduce_scatter(const OpTag& tag, Buffer full, Buffer shard, ReduceInto how, void* scratch) override;
  void do_all_reduce(const OpTag& tag, Buffer data, ReduceOp op, void* scratch) override;
  void do_broadcast(const OpTag& tag, Buffer data, int root) override;
  void do_all_to_all(const OpTag& tag, Buffer in, Buffer out) override;
  void do_all_to_all_v(const OpTag& tag, const PartTable& parts, Buffer in, Buffer out) override;
  void do_barrier(const OpTag& tag) override;

 private:
  WorldOptions options_;
  std::shared_ptr<Allocator> arena_;
  MpiExchange exchange_;
};

}  // namespace zs
