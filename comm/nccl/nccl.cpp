#include <numeric>

#include "comm/gpu/gpu_side.h"
#include "comm/gpu/gpu_world.h"
#include "comm/health/watchdog.h"
#include "comm/nccl/launch_order.h"
#include "comm/nccl/nccl_handle.h"
#include "comm/nccl/nccl_memory.h"
#include "runtime/device/stream_watch.h"

namespace zs {
namespace {

int dtype_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return nccl::kF32;
    case DType::bf16: return nccl::kBf16;
    case DType::f64: return nccl::kF64;
    case DType::i32: return nccl::kI32;
    case DType::i64: return nccl::kI64;
    default: break;
  }
  ZS_CHECK(false, "no sums of {}", name_of(dtype));
}

int number_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return nccl::kSum;
    case ReduceOp::max: return nccl::kMax;
    case ReduceOp::min: return nccl::kMin;
  }
  return nccl::kSum;
}

std::size_t count_of(std::int64_t elems) { return static_cast<std::size_t>(elems); }

/// State that the communicators of one world share.
struct NcclShared {
  Device& device;
  const CudaContext& gpu;
  NcclOptions options;
  std::shared_ptr<const NcclLibrary> library;
  World& base;
  NcclRegistration registration = {};
};

std::shared_ptr<const NcclLibrary> library_of(const NcclOptions& options) {
  return options.table != nullptr ? options.table : open_nccl_library(options.library, options.folders);
}

/// Reason why ranks that said so have nothing registered; nothing where they have.
std::string refusal_of(std::span<const std::int64_t> bytes) {
  for (std::size_t r = 0; r < bytes.size(); ++r) {
    if (bytes[r] == 0) return fmt::format("rank {} has no memory of NCCL's", r);
    if (bytes[r] < 0) return fmt::format("NCCL refuses that of rank {}", r);
    if (bytes[r] != bytes[0]) return fmt::format("rank 0 has {} bytes, rank {} has {}", bytes[0], r, bytes[r]);
  }
  return {};
}

/// Group whose failures come without the stream's knowledge.
class NcclGroup final : public StreamWatch {
 public:
  NcclGroup(const NcclShared& shared, int rank, int size)
      : base_(shared.base),
        handle_(shared.library, fmt::format("rank {} of {}, {}", rank, size, shared.gpu.gpu().describe()),
                shared.options.timeout_s),
        probe_(shared.base.watchdog(), [this] { handle_.look(); }) {}

  NcclHandle& handle() { return handle_; }
  void check_order_by(std::unique_ptr<Communicator> hosts) {
    order_ = std::make_unique<LaunchOrderCheck>(std::move(hosts),
                                                [this](const std::exception_ptr& error) { handle_.fail(error); });
  }
  void launches(const OpTag& tag) {
    if (order_) order_->add(tag);
  }

  void check() override {
    handle_.look();
    try {
      // A rank that waits for its GPU, which waits for another rank, is woken by nobody.
      if (base_.has_ended())
        handle_.fail(std::make_exception_ptr(GroupEnded(ExitCode::peer_lost, "another rank has failed", "nccl")));
      handle_.check();
    } catch (...) {
      handle_.fail(std::current_exception());  // lets the stream end
      throw;
    }
  }
  void finish() override {
    if (order_) order_->finish();
    check();
  }

 private:
  const World& base_;
  NcclHandle handle_;
  std::unique_ptr<LaunchOrderCheck> order_;
  StatusScope probe_;
};

/// GPUs that NCCL connects. Thread and stream rules: Communicator's; what differs is said at make_nccl_world.
class NcclCommunicator final : public GpuSideCommunicator {
 public:
  /// `hosts`: the same ranks between the hosts. The group's NCCL communicator is there.
  NcclCommunicator(std::shared_ptr<NcclShared> shared, std::unique_ptr<Communicator> hosts,
                   std::shared_ptr<NcclGroup> group)
      : GpuSideCommunicator(shared->options.arithmetic),
        shared_(std::move(shared)),
        hosts_(std::move(hosts)),
        group_(std::move(group)),
        token_(shared_->device.allocator()) {
    if (hosts_->size() > 1) enroll_memory();
  }

  ~NcclCommunicator() override {
    operations_.await();
    await_gpu();
  }
  int rank() const override { return hosts_->rank(); }
  int size() const override { return hosts_->size(); }
  const char* transport() const override { return "nccl"; }
  Allocator& arena() override { return shared_->device.allocator(); }
  std::unique_ptr<Communicator> split(int color, int key) override {
    const StatusScope status(recorder(), "split", StatusScope::Host::waits_for_ranks);
    if (watches_ != nullptr && watches_->are_captured())
      throw Error(ExitCode::usage, "a communicator is split while its stream is captured",
                  shared_->gpu.gpu().describe(), "make communicators before");
    if (native_ != nullptr) await_stream(shared_->gpu, native_, shared_->options.timeout_s, "split");
    auto hosts = hosts_->split(color, key), order = hosts_->split(color, key);
    return recorded_like_this(make_part(shared_, *group_, color, key, std::move(hosts), std::move(order)), color);
  }

  /// Collective over the parent's ranks.
  static std::unique_ptr<Communicator> make_part(const std::shared_ptr<NcclShared>& shared, NcclGroup& parent,
                                                 int color, int key, std::unique_ptr<Communicator> hosts,
                                                 std::unique_ptr<Communicator> order) {
    ZS_CHECK(color >= 0, "a split by color {}", color);
    shared->gpu.make_current();
    auto group = std::make_shared<NcclGroup>(*shared, hosts->rank(), hosts->size());
    parent.handle().split_into(group->handle(), color, key);
    if (shared->options.checks_order && hosts->size() > 1) group->check_order_by(std::move(order));
    return std::make_unique<NcclCommunicator>(shared, std::move(hosts), std::move(group));
  }

 private:
  /// Waits for what the GPU still does of its operations. While an exception unwinds it does not, for peers may not
  /// come to the end; what is wrong with a stream is told by who waits for that.
  void await_gpu() const noexcept {
    if (native_ == nullptr || std::uncaught_exceptions() > 0) return;
    if (watches_ != nullptr && watches_->are_captured()) return;
    try {
      await_stream(shared_->gpu, native_, shared_->options.timeout_s, "the end of a communicator");
    } catch (const Error&) {
    }
  }
  /// Token that a barrier adds up.
  class Token {
   public:
    explicit Token(Allocator& memory) : memory_(memory), address_(memory.allocate(kBytes)) {}
    ~Token() { memory_.deallocate(address_, kBytes); }
    Token(const Token&) = delete;
    Token& operator=(const Token&) = delete;
    void* address() const { return address_; }

   private:
    static constexpr std::int64_t kBytes = 64;
    Allocator& memory_;
    void* address_;
  };

  std::int64_t reduce_scatter_scratch_bytes(const Buffer& full, const Buffer& shard, ReduceInto into) const override {
    return nccl_reduce_scatter_scratch_bytes(full, shard, into, shared_->options.sums_in_rank_order);
  }
  bool adds(DType dtype) const override { return nccl_adds(dtype); }
  bool adds_onto(DType dtype) const override { return nccl_adds_onto(dtype); }
  PartTable agree_on_parts(const OpTag& tag, std::span<const std::int64_t> own, void*) override {
    if (exec().state<StreamWatches>().are_captured())
      throw Error(ExitCode::usage, fmt::format("{} is captured, whose counts the hosts agree on", tag.text()),
                  shared_->gpu.gpu().describe(), "use all_to_all within a graph");
    return agree_between_hosts(*hosts_, stream_, tag, own);
  }

  /// Registers memory with all ranks or none: NCCL takes it that buffers of an operation are alike on all ranks. Memory
  /// of one size is planned alike, and buffers lie at the same place of it.
  void enroll_memory() {
    const NcclMemory* const memory = shared_->options.memory.get();
    std::int64_t own = 0;
    if (memory != nullptr && memory->bytes() > 0)
      own = group_->handle().enroll(memory->blocks()) ? memory->bytes() : -1;
    std::vector<std::int64_t> all(count_of(size()));
    const Buffer said{all.data(), size(), DType::i64, DeviceKind::cpu}, mine = said.slice(rank(), 1);
    *mine.as<std::int64_t>() = own;
    hosts_->all_gather(stream_, "registered", mine, said);
    NcclRegistration& registration = shared_->registration;
    registration.refusal = refusal_of(all);
    if (!registration.refusal.empty()) return group_->handle().discharge();
    registration.bytes = own;
    ++registration.communicators;
  }

  /// One operation: `call(library, comm, stream)`.
  template <class Call>
  void launch(const OpTag& tag, const char* name, const Call& call) {
    native_ = static_cast<CUstream_st*>(exec().native_stream());
    watches_ = &exec().state<StreamWatches>();
    watches_->add(group_);
    if (watches_->are_captured()) group_->handle().note_captured();
    group_->launches(tag);
    shared_->gpu.make_current();
    group_->handle().run(name, tag.text(), [&](ncclComm* comm) { return call(*shared_->library, comm, native_); });
  }
  static bool is_failure(int status) { return status != nccl::kSuccess && status != nccl::kInProgress; }
  /// Several calls as one; the first that fails is what it returns.
  template <class Calls>
  static int grouped(const NcclLibrary& library, const Calls& calls) {
    const int start = library.group_start();
    if (start != nccl::kSuccess) return start;
    const int inside = calls();
    const int end = library.group_end();
    return is_failure(inside) ? inside : end;
  }
  /// Part r of `in` goes to rank r, part r of `out` comes from there, in bytes; both begin and bytes by rank.
  struct Piece {
    std::byte* data;
    std::int64_t bytes;
  };
  template <class In, class Out>
  void exchange(const OpTag& tag, const In& in, const Out& out) {
    launch(tag, "ncclGroupEnd", [&](const NcclLibrary& library, ncclComm* comm, CUstream_st* stream) {
      return grouped(library, [&] {
        for (int r = 0; r < size(); ++r) {
          const Piece sent = in(r), received = out(r);
          int status = nccl::kSuccess;
          if (sent.bytes > 0) status = library.send(sent.data, count_of(sent.bytes), nccl::kU8, r, comm, stream);
          if (!is_failure(status) && received.bytes > 0)
            status = library.receive(received.data, count_of(received.bytes), nccl::kU8, r, comm, stream);
          if (is_failure(status)) return status;
        }
        return nccl::kSuccess;
      });
    });
  }
  static Piece piece(const Buffer& buffer) { return {static_cast<std::byte*>(buffer.data), buffer.bytes()}; }

  void do_all_gather(const OpTag& tag, Buffer shard, Buffer full) override {
    launch(tag, "ncclAllGather", [&](const NcclLibrary& library, ncclComm* comm, CUstream_st* stream) {
      return library.all_gather(shard.data, full.data, count_of(shard.bytes()), nccl::kU8, comm, stream);
    });
  }
  void do_reduce_scatter(const OpTag& tag, Buffer full, Buffer shard, ReduceInto into, void* scratch) override {
    if (nccl_adds_slices(full, shard, shared_->options.sums_in_rank_order))
      return add_slices(tag, full, shard, into, scratch);
    const bool accumulates = into == ReduceInto::accumulate;
    const Buffer sum = accumulates ? Buffer{scratch, shard.elems, shard.dtype, shard.device} : shard;
    launch(tag, "ncclReduceScatter", [&](const NcclLibrary& library, ncclComm* comm, CUstream_st* stream) {
      return library.reduce_scatter(full.data, sum.data, count_of(sum.elems), dtype_of(sum.dtype), nccl::kSum, comm,
                                    stream);
    });
    if (accumulates && !shard.empty()) checked().accumulate(exec(), shard, sum);
  }
  /// Adds slices in f32, in rank order: they travel to those that add them.
  void add_slices(const OpTag& tag, Buffer full, Buffer shard, ReduceInto into, void* scratch) {
    const Buffer slices{scratch, full.elems, full.dtype, full.device};
    const auto slice_of = [&](const Buffer& all, int r) { return all.slice(r * shard.elems, shard.elems); };
    exchange(
        tag, [&](int r) { return piece(slice_of(full, r)); }, [&](int r) { return piece(slice_of(slices, r)); });
    if (shard.empty()) return;
    if (into == ReduceInto::overwrite) begin_sum(shard, slice_of(slices, 0));
    for (int r = into == ReduceInto::overwrite ? 1 : 0; r < size(); ++r)
      checked().accumulate(exec(), shard, slice_of(slices, r));
  }
  void begin_sum(const Buffer& sum, const Buffer& first) const {
    if (sum.dtype == first.dtype) return shared_->gpu.copy(native_, sum, first);
    checked().cast(exec(), sum, first);
  }
  void do_all_reduce(const OpTag& tag, Buffer data, ReduceOp op, void*) override {
    launch(tag, "ncclAllReduce", [&](const NcclLibrary& library, ncclComm* comm, CUstream_st* stream) {
      return library.all_reduce(data.data, data.data, count_of(data.elems), dtype_of(data.dtype), number_of(op), comm,
                                stream);
    });
  }
  void do_broadcast(const OpTag& tag, Buffer data, int root) override {
    launch(tag, "ncclBroadcast", [&](const NcclLibrary& library, ncclComm* comm, CUstream_st* stream) {
      return library.broadcast(data.data, data.data, count_of(data.bytes()), nccl::kU8, root, comm, stream);
    });
  }
  void do_all_to_all(const OpTag& tag, Buffer in, Buffer out) override {
    const std::int64_t n = in.elems / size();
    exchange(
        tag, [&](int r) { return piece(in.slice(r * n, n)); }, [&](int r) { return piece(out.slice(r * n, n)); });
  }
  void do_all_to_all_v(const OpTag& tag, const PartTable& parts, Buffer in, Buffer out) override {
    exchange(
        tag, [&](int r) { return piece(in.slice(parts.sent_begin(rank(), r), parts.count(rank(), r))); },
        [&](int r) { return piece(out.slice(parts.received_begin(rank(), r), parts.count(r, rank()))); });
  }
  void do_barrier(const OpTag& tag) override {
    launch(tag, "ncclAllReduce", [&](const NcclLibrary& library, ncclComm* comm, CUstream_st* stream) {
      return library.all_reduce(token_.address(), token_.address(), 1, nccl::kI32, nccl::kSum, comm, stream);
    });
  }

  const GpuArithmetic& checked() const {
    ZS_CHECK(arithmetic().cast != nullptr && arithmetic().accumulate != nullptr,
             "a reduction that NCCL has not, without NcclOptions::arithmetic");
    return arithmetic();
  }

  std::shared_ptr<NcclShared> shared_;
  std::unique_ptr<Communicator> hosts_;
  InlineStream stream_;  // stream of hosts_
  std::shared_ptr<NcclGroup> group_;
  Token token_;
  CUstream_st* native_ = nullptr;     // once it has been used
  StreamWatches* watches_ = nullptr;  // watches of its stream, then
};

class NcclWorld final : public GpuSideWorld {
 public:
  NcclWorld(World& base, Device& device, const NcclOptions& options) : GpuSideWorld(base) {
    shared_ = std::make_shared<NcclShared>(NcclShared{device, context_of(device), options, library_of(options), base});
    const StatusScope status(base.watchdog(), "the start of NCCL", StatusScope::Host::waits_for_ranks);
    const auto hosts = base.communicator();
    NcclLibrary::Id id{};
    if (rank() == 0) {
      const int status = shared_->library->unique_id(&id);
      if (status != nccl::kSuccess) {
        throw Error(ExitCode::internal, fmt::format("ncclGetUniqueId: NCCL error {}", status), "rank 0",
                    "NCCL_DEBUG=INFO says more");
      }
    }
    InlineStream stream;
    hosts->broadcast(stream, "nccl", {id.bytes, sizeof(id.bytes), DType::u8, DeviceKind::cpu}, 0);
    shared_->gpu.make_current();
    root_ = std::make_shared<NcclGroup>(*shared_, rank(), size());
    root_->handle().init(size(), id, rank());
  }

  std::string transport() const override { return "nccl"; }
  bool sums_in_rank_order() const override { return shared_->options.sums_in_rank_order; }
  const NcclRegistration& registration() const { return shared_->registration; }
  std::unique_ptr<Communicator> communicator() override {
    std::vector<int> ranks(static_cast<std::size_t>(size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return group(ranks);
  }
  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    auto hosts = base().group(ranks), order = base().group(ranks);
    const int place = hosts->rank();
    auto made = NcclCommunicator::make_part(shared_, *root_, ranks[0], place, std::move(hosts), std::move(order));
    Watchdog* const watchdog = base().watchdog();
    made->record_by(watchdog == nullptr ? nullptr : &watchdog->recorder(), 0, group_name_.child(ranks[0]));
    return made;
  }

 private:
  std::shared_ptr<NcclShared> shared_;
  std::shared_ptr<NcclGroup> root_;  // for splits only
  GroupName group_name_;
};

}  // namespace

bool nccl_adds_slices(const Buffer& full, const Buffer& shard, bool in_rank_order) {
  return full.dtype != shard.dtype || (in_rank_order && full.dtype == DType::f32);
}

std::int64_t nccl_reduce_scatter_scratch_bytes(const Buffer& full, const Buffer& shard, ReduceInto into,
                                               bool in_rank_order) {
  if (nccl_adds_slices(full, shard, in_rank_order)) return full.bytes();
  return into == ReduceInto::accumulate ? shard.bytes() : 0;
}

NcclRegistration registration_of(const World& world) {
  const auto* const nccl = dynamic_cast<const NcclWorld*>(&world);
  return nccl != nullptr ? nccl->registration() : NcclRegistration{};
}

std::shared_ptr<NcclMemory> make_nccl_memory(const NcclOptions& options) {
  return NcclMemory::made_by(library_of(options));
}

std::unique_ptr<World> make_nccl_world(World& base, Device& device, const NcclOptions& options) {
  return std::make_unique<NcclWorld>(base, device, options);
}

}  // namespace zs
