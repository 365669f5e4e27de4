#include "comm/gpu_side.h"
#include "comm/gpu_world.h"
#include "comm/inline_stream.h"
#include "comm/wait.h"

namespace zs {
namespace {

/// What the communicators of a staged world share.
struct Staging {
  Device& device;
  const CudaContext& gpu;
  double timeout_s;
  GpuArithmetic arithmetic;
  std::unique_ptr<Allocator> pinned = make_pinned_allocator(gpu);
};

/// Page-locked memory that is used by one operation after the other, and grows.
class Room {
 public:
  explicit Room(Allocator& memory) : memory_(memory) {}
  ~Room() { drop(); }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

  /// As large as `like`. What it held is lost.
  Buffer take(const Buffer& like) {
    if (like.bytes() > bytes_) {
      drop();
      address_ = memory_.allocate(like.bytes());
      bytes_ = like.bytes();
    }
    return {address_, like.elems, like.dtype, DeviceKind::cpu};
  }

 private:
  void drop() noexcept {
    if (address_ != nullptr) memory_.deallocate(address_, bytes_);
    address_ = nullptr;
    bytes_ = 0;
  }
  Allocator& memory_;
  void* address_ = nullptr;
  std::int64_t bytes_ = 0;
};

/// Copies through this host's memory, around a communicator there. Thread and stream rules: Communicator's.
class StagedCommunicator final : public GpuSideCommunicator {
 public:
  StagedCommunicator(std::unique_ptr<Communicator> hosts, std::shared_ptr<Staging> staging)
      : GpuSideCommunicator(staging->arithmetic),
        hosts_(std::move(hosts)),
        staging_(std::move(staging)),
        in_(*staging_->pinned),
        out_(*staging_->pinned) {}

  int rank() const override { return hosts_->rank(); }
  int size() const override { return hosts_->size(); }
  const char* transport() const override { return "staged"; }
  Allocator& arena() override { return staging_->device.allocator(); }
  std::int64_t message_bytes() const override { return hosts_->message_bytes(); }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<StagedCommunicator>(hosts_->split(color, key), staging_);
  }

 private:
  PartTable agree_on_parts(const OpTag& tag, std::span<const std::int64_t> own, void*) override {
    return agree_between_hosts(*hosts_, stream_, tag, own);
  }

  CUstream_st* native() const { return static_cast<CUstream_st*>(exec().native_stream()); }
  void copy(const Buffer& to, const Buffer& from) const { staging_->gpu.copy(native(), to, from); }
  /// What `from` holds when the stream comes here: after `await`.
  Buffer fetched(Room& room, const Buffer& from) {
    const Buffer to = room.take(from);
    copy(to, from);
    return to;
  }
  /// The stream has come here, so that nobody uses the rooms but the host.
  void await(const OpTag& tag) const { await_stream(staging_->gpu, native(), staging_->timeout_s, tag.text()); }

  void do_all_gather(const OpTag& tag, Buffer shard, Buffer full) override {
    await(tag);
    const Buffer in = fetched(in_, shard), out = out_.take(full);
    await(tag);
    hosts_->all_gather(stream_, unit_of(tag), in, out);
    copy(full, out);
  }
  void do_reduce_scatter(const OpTag& tag, Buffer full, Buffer shard, Fold fold, void*) override {
    await(tag);
    const Buffer in = fetched(in_, full), out = fold == Fold::accumulate ? fetched(out_, shard) : out_.take(shard);
    await(tag);
    hosts_->reduce_scatter(stream_, unit_of(tag), in, out, fold);
    copy(shard, out);
  }
  void do_all_reduce(const OpTag& tag, Buffer data, ReduceOp op, void*) override {
    await(tag);
    const Buffer both = fetched(in_, data);
    await(tag);
    hosts_->all_reduce(stream_, unit_of(tag), both, op);
    copy(data, both);
  }
  void do_broadcast(const OpTag& tag, Buffer data, int root) override {
    await(tag);
    const Buffer both = root == rank() ? fetched(in_, data) : in_.take(data);
    await(tag);
    hosts_->broadcast(stream_, unit_of(tag), both, root);
    if (root != rank()) copy(data, both);
  }
  void do_all_to_all(const OpTag& tag, Buffer in, Buffer out) override {
    await(tag);
    const Buffer from = fetched(in_, in), to = out_.take(out);
    await(tag);
    hosts_->all_to_all(stream_, unit_of(tag), from, to);
    copy(out, to);
  }
  void do_all_to_all_v(const OpTag& tag, const PartTable& parts, Buffer in, Buffer out) override {
    std::vector<std::int64_t> sent, received;
    for (int r = 0; r < size(); ++r) {
      sent.push_back(parts.count(rank(), r));
      received.push_back(parts.count(r, rank()));
    }
    await(tag);
    const Buffer from = fetched(in_, in), to = out_.take(out);
    await(tag);
    hosts_->all_to_all_v(stream_, unit_of(tag), {from, sent}, {to, received});
    copy(out, to);
  }
  void do_barrier(const OpTag& tag) override {
    await(tag);
    hosts_->barrier(stream_, unit_of(tag));
  }

  std::unique_ptr<Communicator> hosts_;
  InlineStream stream_;
  std::shared_ptr<Staging> staging_;
  Room in_, out_;
};

class StagedWorld final : public GpuSideWorld {
 public:
  StagedWorld(World& base, Device& device, double timeout_s, const GpuArithmetic& arithmetic)
      : GpuSideWorld(base), staging_(std::make_shared<Staging>(Staging{device, context_of(device), timeout_s, arithmetic})) {}

  std::string transport() const override { return "staged"; }
  std::unique_ptr<Communicator> communicator() override { return std::make_unique<StagedCommunicator>(base().communicator(), staging_); }
  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    return std::make_unique<StagedCommunicator>(base().group(ranks), staging_);
  }

 private:
  std::shared_ptr<Staging> staging_;
};

}  // namespace

std::unique_ptr<World> make_staged_world(World& base, Device& device, double timeout_s, const GpuArithmetic& arithmetic) {
  return std::make_unique<StagedWorld>(base, device, timeout_s, arithmetic);
}

}  // namespace zs
