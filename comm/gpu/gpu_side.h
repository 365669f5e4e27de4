#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/gpu/gpu_world.h"
#include "comm/inline_stream.h"
#include "comm/part_table.h"
#include "comm/world.h"
#include "runtime/device/cuda_context.h"
#include "runtime/device/device.h"

// Code that the transports over GPU buffers have in common.
namespace zs {

/// Context of a CUDA device; Error(internal) for another.
const CudaContext& context_of(Device& device);
/// "blocks.3" of "all_gather(blocks.3) int8".
std::string_view unit_of(const OpTag& tag);
/// Blocks the host until the GPU has done what is enqueued. Error(peer_lost) that names `what` after `timeout_s`.
void await_stream(const CudaContext& gpu, CUstream_st* stream, double timeout_s, std::string_view what);
/// Makes Communicator::agree_on_parts's exchange between the hosts.
PartTable agree_between_hosts(Communicator& hosts, InlineStream& stream, const OpTag& tag,
                              std::span<const std::int64_t> own);

/// True if the nccl transport lets the slices of a reduction travel and adds them itself, in rank order: where NCCL has
/// no such sum, or one of another order than wanted.
bool nccl_adds_slices(const Buffer& full, const Buffer& shard, bool in_rank_order);
/// True if the nccl transport reduces that dtype: NCCL knows no u16, and nobody has asked for u8.
constexpr bool nccl_adds(DType dtype) { return dtype != DType::u8 && dtype != DType::u16; }
/// True if the nccl transport adds such sums to what is there, which is done by kernels of ours.
constexpr bool nccl_adds_onto(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }
/// The scratch of the nccl transport's reductions, for those who plan without it: slices that travel before they are
/// added, or a sum that is added to an accumulator.
std::int64_t nccl_reduce_scatter_scratch_bytes(const Buffer& full, const Buffer& shard, ReduceInto into,
                                               bool in_rank_order);

/// The pinned memory of the staged transport's operations, for those who plan without it: a copy of what goes in,
/// and after it one of what comes out.
std::int64_t staged_bytes(const Buffer& in, const Buffer& out);

/// A communicator over buffers of a GPU: what travels as int8 is packed by its kernels. Thread and stream rules:
/// Communicator's.
class GpuSideCommunicator : public Communicator {
 public:
  explicit GpuSideCommunicator(const GpuArithmetic& arithmetic) : arithmetic_(arithmetic) {}

 protected:
  const GpuArithmetic& arithmetic() const { return arithmetic_; }

 private:
  bool is_on_host() const final { return false; }
  bool can_pack() const final { return arithmetic_.pack_int8 != nullptr && arithmetic_.reduce_int8 != nullptr; }
  void pack(Buffer packed, Buffer elements, int slices) final {
    arithmetic_.pack_int8(exec(), packed, elements, slices);
  }
  void reduce_packed(Buffer out, Buffer packed, int parts, bool accumulate) final {
    arithmetic_.reduce_int8(exec(), out, packed, parts, accumulate);
  }

  const GpuArithmetic arithmetic_;
};

/// The ranks of another world, with other communicators.
class GpuSideWorld : public World {
 public:
  explicit GpuSideWorld(World& base) : base_(base) {}
  int rank() const override { return base_.rank(); }
  int size() const override { return base_.size(); }
  int local_rank() const override { return base_.local_rank(); }
  int local_size() const override { return base_.local_size(); }
  std::vector<int> hosts() const override { return base_.hosts(); }
  bool sums_in_rank_order() const override { return base_.sums_in_rank_order(); }
  std::unique_ptr<Communicator> host_communicator() override { return base_.host_communicator(); }
  Agreement agree(int code, const std::string& message) override { return base_.agree(code, message); }
  void abort(int code) noexcept override { base_.abort(code); }
  bool has_ended() const noexcept override { return base_.has_ended(); }
  Watchdog* watchdog() override { return base_.watchdog(); }

 protected:
  World& base() const { return base_; }

 private:
  World& base_;
};

}  // namespace zs
