#include "comm/backoff.h"
#include "comm/gpu/gpu_side.h"
#include "comm/gpu/gpu_world.h"
#include "comm/inline_stream.h"

namespace zs {
namespace {

/// State that the communicators of a staged world share.
struct Staging {
  Device& device;
  const CudaContext& gpu;
  double timeout_s;
  GpuArithmetic arithmetic;
};

/// Copies through this host's memory, around a communicator there. Thread and stream rules: Communicator's.
class StagedCommunicator final : public GpuSideCommunicator {
 public:
  StagedCommunicator(std::unique_ptr<Communicator> hosts, std::shared_ptr<Staging> staging)
      : GpuSideCommunicator(staging->arithmetic), hosts_(std::move(hosts)), staging_(std::move(staging)) {}
  ~StagedCommunicator() override { operations_.await(); }

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

  std::int64_t pinned_bytes(const Buffer& in, const Buffer& out) const override { return staged_bytes(in, out); }

  CUstream_st* native() const { return static_cast<CUstream_st*>(exec().native_stream()); }
  void copy(const Buffer& to, const Buffer& from) const { staging_->gpu.copy(native(), to, from); }
  /// Buffers where the hosts find what the operation takes from `in`, and put what goes to `out`, as staged_bytes has
  /// it.
  struct Staged {
    Buffer in, out;
  };
  Staged staged(const Buffer& in, const Buffer& out) const {
    auto* const begin = static_cast<std::byte*>(exec().pinned(staged_bytes(in, out)));
    return {{begin, in.elems, in.dtype, DeviceKind::cpu},
            {begin + Pool::rounded(in.bytes()), out.elems, out.dtype, DeviceKind::cpu}};
  }
  /// The stream has come here, so that nobody uses the operation's pinned memory but the host.
  void await(const OpTag& tag) const { await_stream(staging_->gpu, native(), staging_->timeout_s, tag.text()); }

  void do_all_gather(const OpTag& tag, Buffer shard, Buffer full) override {
    const Staged host = staged(shard, full);
    copy(host.in, shard);
    await(tag);
    hosts_->all_gather(stream_, unit_of(tag), host.in, host.out);
    copy(full, host.out);
  }
  void do_reduce_scatter(const OpTag& tag, Buffer full, Buffer shard, ReduceInto into, void*) override {
    const Staged host = staged(full, shard);
    copy(host.in, full);
    if (into == ReduceInto::accumulate) copy(host.out, shard);
    await(tag);
    hosts_->reduce_scatter(stream_, unit_of(tag), host.in, host.out, into);
    copy(shard, host.out);
  }
  void do_all_reduce(const OpTag& tag, Buffer data, ReduceOp op, void*) override {
    const Buffer both = staged(data, {}).in;
    copy(both, data);
    await(tag);
    hosts_->all_reduce(stream_, unit_of(tag), both, op);
    copy(data, both);
  }
  void do_broadcast(const OpTag& tag, Buffer data, int root) override {
    const Buffer both = staged(data, {}).in;
    if (root == rank()) copy(both, data);
    await(tag);
    hosts_->broadcast(stream_, unit_of(tag), both, root);
    if (root != rank()) copy(data, both);
  }
  void do_all_to_all(const OpTag& tag, Buffer in, Buffer out) override {
    const Staged host = staged(in, out);
    copy(host.in, in);
    await(tag);
    hosts_->all_to_all(stream_, unit_of(tag), host.in, host.out);
    copy(out, host.out);
  }
  void do_all_to_all_v(const OpTag& tag, const PartTable& parts, Buffer in, Buffer out) override {
    std::vector<std::int64_t> sent, received;
    for (int r = 0; r < size(); ++r) {
      sent.push_back(parts.count(rank(), r));
      received.push_back(parts.count(r, rank()));
    }
    const Staged host = staged(in, out);
    copy(host.in, in);
    await(tag);
    hosts_->all_to_all_v(stream_, unit_of(tag), {host.in, sent}, {host.out, received});
    copy(out, host.out);
  }
  void do_barrier(const OpTag& tag) override {
    await(tag);
    hosts_->barrier(stream_, unit_of(tag));
  }

  std::unique_ptr<Communicator> hosts_;
  InlineStream stream_;
  std::shared_ptr<Staging> staging_;
};

class StagedWorld final : public GpuSideWorld {
 public:
  StagedWorld(World& base, Device& device, double timeout_s, const GpuArithmetic& arithmetic)
      : GpuSideWorld(base),
        staging_(std::make_shared<Staging>(Staging{device, context_of(device), timeout_s, arithmetic})) {}

  std::string transport() const override { return "staged"; }
  std::unique_ptr<Communicator> communicator() override {
    return std::make_unique<StagedCommunicator>(base().communicator(), staging_);
  }
  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    return std::make_unique<StagedCommunicator>(base().group(ranks), staging_);
  }

 private:
  std::shared_ptr<Staging> staging_;
};

}  // namespace

std::unique_ptr<World> make_staged_world(World& base, Device& device, double timeout_s,
                                         const GpuArithmetic& arithmetic) {
  return std::make_unique<StagedWorld>(base, device, timeout_s, arithmetic);
}

}  // namespace zs
