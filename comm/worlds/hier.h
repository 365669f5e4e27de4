#pragma once

#include <memory>
#include <span>

#include "comm/host/host_map.h"
#include "comm/mpi/mpi_communicator.h"
#include "comm/shm/shm_communicator.h"

namespace zs {

/// Several hosts, with several ranks on some: what crosses from host to host does so once a host, in messages; inside
/// each the ranks read each other's memory. A rank's part of the data is taken in by its partner on each other host,
/// which also sends the sum that its host has of that part (HostMap::partner). Every message round is one of the whole
/// group, so that all tags are compared and a rank that does not come is known to everybody.
///
/// Sums are made inside each host first, in the order of its ranks, and then over the hosts in their order; carried in
/// f32 for bf16, on the wire too, or packed (CommDType::int8) where asked. WorldOptions::sums_in_rank_order has them
/// made as MpiCommunicator makes them. Thread and stream rules: Communicator's.
class HierCommunicator final : public MpiCommunicator {
 public:
  /// Takes the communicator over. `host`: the ranks of this host, in the same order.
  HierCommunicator(MPI_Comm comm, HostMap map, std::unique_ptr<ShmCommunicator> host, const WorldOptions& options,
                   std::shared_ptr<Allocator> arena);
  ~HierCommunicator() override { operations_.await(); }

  const char* transport() const override { return "hier"; }
  bool prefers_arena() const override { return true; }
  std::unique_ptr<Communicator> split(int color, int key) override;

 private:
  struct Sum;
  std::int64_t reduce_scatter_scratch_bytes(const Buffer& full, const Buffer& shard, ReduceInto into) const override;
  std::int64_t all_reduce_scratch_bytes(const Buffer& data) const override;
  std::int64_t packed_sum_scratch_bytes(const Buffer& full) const override;

  void do_all_gather(const OpTag& tag, Buffer shard, Buffer full) override;
  void do_reduce_scatter(const OpTag& tag, Buffer full, Buffer shard, ReduceInto how, void* scratch) override;
  void do_packed_sum(const OpTag& tag, Buffer full, Buffer shard, ReduceInto how, void* scratch) override;
  void do_all_reduce(const OpTag& tag, Buffer data, ReduceOp op, void* scratch) override;
  void do_broadcast(const OpTag& tag, Buffer data, int root) override;
  void do_all_to_all(const OpTag& tag, Buffer in, Buffer out) override;
  void do_all_to_all_v(const OpTag& tag, const PartTable& parts, Buffer in, Buffer out) override;

  int own_host() const { return map_.host_of(rank()); }
  std::span<const int> mates() const { return map_.ranks_on(own_host()); }
  void gather(const OpTag& tag, Buffer full, std::int64_t piece_bytes);
  void reduce(const OpTag& tag, const Sum& sum);
  void exchange_sums(const OpTag& tag, const Sum& sum, std::int64_t from, std::int64_t elems);
  void exchange_packed(const OpTag& tag, const Sum& sum, std::int64_t from, std::int64_t elems);
  void add_up_hosts(const Sum& sum, std::int64_t from, std::int64_t elems);
  void reduce_in_one_round(const OpTag& tag, Buffer data, ReduceOp op, std::byte* scratch);

  HostMap map_;
  std::unique_ptr<ShmCommunicator> host_;
};

/// The communicator for a group: `host` itself where all its ranks are on one host, messages where each is alone on its
/// own, else both. Takes `comm` over. `hosts`: of each rank, any numbers.
std::unique_ptr<Communicator> make_group(MPI_Comm comm, std::span<const int> hosts,
                                         std::unique_ptr<ShmCommunicator> host, const WorldOptions& options,
                                         std::shared_ptr<Allocator> arena);

}  // namespace zs
