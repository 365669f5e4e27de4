#include <algorithm>

#include "comm/mpi_exchange.h"
#include "comm/world.h"

namespace zs {
namespace {

constexpr int kArenaRange = 1;  // of addresses; the meta device's own allocator has range 0

/// Declares and checks what the base class declares and checks; the work itself is empty.
class MetaCommunicator final : public Communicator {
 public:
  MetaCommunicator(int rank, int size, Transport stands_for, std::shared_ptr<Allocator> arena)
      : rank_(rank), size_(size), stands_for_(stands_for), arena_(std::move(arena)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const char* transport() const override { return "meta"; }
  Allocator& arena() override { return *arena_; }
  std::unique_ptr<Communicator> split(int color, int key) override {
    ZS_CHECK(color == 0 && key == rank_, "split({}, {}) on rank {}: a meta communicator can only be duplicated", color, key, rank_);
    return std::make_unique<MetaCommunicator>(rank_, size_, stands_for_, arena_);
  }

 private:
  std::int64_t reduce_scatter_scratch_bytes(const Buffer& full) const override {
    return stands_for_ == Transport::mpi ? mpi_reduce_scatter_scratch_bytes(size_, full) : 0;
  }
  std::int64_t all_reduce_scratch_bytes(const Buffer& data) const override {
    return stands_for_ == Transport::mpi ? mpi_all_reduce_scratch_bytes(rank_, size_, data) : 0;
  }

  void do_all_gather(const OpTag&, Buffer, Buffer) override {}
  void do_reduce_scatter(const OpTag&, Buffer, Buffer, Fold, void*) override {}
  void do_all_reduce(const OpTag&, Buffer, ReduceOp, void*) override {}
  void do_broadcast(const OpTag&, Buffer, int) override {}
  void do_all_to_all(const OpTag&, Buffer, Buffer) override {}
  void do_barrier(const OpTag&) override {}

  int rank_, size_;
  Transport stands_for_;
  std::shared_ptr<Allocator> arena_;
};

class MetaWorld final : public World {
 public:
  MetaWorld(int rank, int size, Transport stands_for) : rank_(rank), size_(size), stands_for_(stands_for) {
    ZS_CHECK(rank >= 0 && rank < size, "rank {} of a meta world of {}", rank, size);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return rank_; }
  int local_size() const override { return size_; }
  std::string transport() const override { return "meta"; }
  std::unique_ptr<Communicator> communicator() override { return std::make_unique<MetaCommunicator>(rank_, size_, stands_for_, arena_); }
  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    const auto self = std::find(ranks.begin(), ranks.end(), rank_);
    ZS_CHECK(self != ranks.end(), "rank {} is not in the group it names", rank_);
    return std::make_unique<MetaCommunicator>(static_cast<int>(self - ranks.begin()), static_cast<int>(ranks.size()), stands_for_, arena_);
  }
  Agreement agree(int code, const std::string& message) override {
    return code == 0 ? Agreement{} : Agreement{code, message.substr(0, 1000), rank_};
  }
  void abort(int) noexcept override {}

 private:
  int rank_, size_;
  Transport stands_for_;
  std::shared_ptr<Allocator> arena_ = make_meta_allocator(kArenaRange);
};

}  // namespace

std::unique_ptr<World> make_meta_world(int rank, int size, Transport stands_for) {
  return std::make_unique<MetaWorld>(rank, size, stands_for);
}

}  // namespace zs
