#include <array>

#include "comm/group_place.h"
#include "comm/health/watchdog.h"
#include "comm/ordered_reduce.h"
#include "comm/world.h"
#include "runtime/device/cuda_context.h"

namespace zs {
namespace {

/// A group of one: copies and casts, or nothing where input and output are the same memory. Thread and stream rules:
/// Communicator's.
class SingleCommunicator final : public Communicator {
 public:
  explicit SingleCommunicator(std::shared_ptr<Allocator> arena) : arena_(std::move(arena)) {}
  ~SingleCommunicator() override { operations_.await(); }

  int rank() const override { return 0; }
  int size() const override { return 1; }
  const char* transport() const override { return "single"; }
  Allocator& arena() override { return *arena_; }
  std::unique_ptr<Communicator> split(int, int) override { return std::make_unique<SingleCommunicator>(arena_); }

 private:
  void do_all_gather(const OpTag&, Buffer shard, Buffer full) override { copy(full, shard); }
  void do_reduce_scatter(const OpTag&, Buffer full, Buffer shard, ReduceInto how, void*) override {
    const bool accumulate = how == ReduceInto::accumulate;
    if (!accumulate && full.dtype == shard.dtype) return copy(shard, full);
    ZS_CHECK(full.device != DeviceKind::cuda, "a sum of {} into {} on a GPU", name_of(full.dtype),
             name_of(shard.dtype));
    const std::array<const std::byte*, 1> parts{static_cast<const std::byte*>(full.data)};
    auto* out = static_cast<std::byte*>(shard.data);
    ordered_reduce({parts, full.dtype, accumulate ? out : nullptr, out, shard.dtype, shard.elems, ReduceOp::sum});
  }
  void do_all_reduce(const OpTag&, Buffer, ReduceOp, void*) override {}
  void do_broadcast(const OpTag&, Buffer, int) override {}
  void do_all_to_all(const OpTag&, Buffer in, Buffer out) override { copy(out, in); }
  void do_all_to_all_v(const OpTag& tag, const PartTable&, Buffer in, Buffer out) override {
    do_all_to_all(tag, in, out);
  }
  void do_barrier(const OpTag&) override {}

  void copy(const Buffer& out, const Buffer& in) const {
    if (in.device != DeviceKind::cuda) return copy_bytes(out.data, in.data, in.bytes());
    exec().gpu().copy(exec().native_stream(), out, in);
  }

  std::shared_ptr<Allocator> arena_;
};

class SingleWorld final : public World {
 public:
  explicit SingleWorld(const WorldOptions& options) : watchdog_(options.watch, 0, watched_) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  int local_rank() const override { return 0; }
  int local_size() const override { return 1; }
  std::string transport() const override { return "single"; }
  std::unique_ptr<Communicator> communicator() override { return std::make_unique<SingleCommunicator>(arena_); }
  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    place_in_group(ranks, 0, 1);
    return communicator();
  }
  Agreement agree(int code, const std::string& message) override {
    return code == 0 ? Agreement{} : Agreement{code, message.substr(0, 1000), 0};
  }
  void abort(int) noexcept override {}  // nobody waits for this rank
  Watchdog* watchdog() override { return &watchdog_; }

 private:
  Watchdog::Threads watched_{1};
  Watchdog watchdog_;
  std::shared_ptr<Allocator> arena_ = make_cpu_allocator();
};

}  // namespace

std::unique_ptr<World> make_single_world(const WorldOptions& options) { return std::make_unique<SingleWorld>(options); }

}  // namespace zs
