#pragma once

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/world.h"
#include "model/train/config/config.h"
#include "model/train/plan/memory_table.h"
#include "runtime/device/trace.h"
#include "runtime/shard/runtime/sharded_runtime.h"

namespace zs {

class Session;

/// Bytes that a rank takes from the system.
struct RankBytes {
  using OnDisk = std::map<std::string, std::int64_t>;  ///< the bytes of a file in each folder
  RankBytes(std::int64_t of_device = 0, std::int64_t of_host = 0, OnDisk on_disk = {})
      : device(of_device), host(of_host), disk(std::move(on_disk)) {}
  std::int64_t device, host;  ///< the device's memory, and the host's beside it
  OnDisk disk;
};

/// Plan of what a run will do, read off the meta device: nothing is allocated or computed.
struct TrainPlan {
  struct Unit {
    std::string name;
    std::shared_ptr<const UnitLayout> layout;  ///< over the ranks that share one set of masters
    bool is_zero_copy = false;
    MixedPrecisionPolicy precision = {};
    std::string scheme = {};            ///< its strategy's name
    std::vector<std::string> why = {};  ///< keys and patterns that made it what it is
    bool is_frozen = false;
    bool has_master = true;                     ///< else a rank holds its frozen weights once, in bf16
    const FrozenFormat* held_format = nullptr;  ///< format of its frozen weights instead
    static Unit of(const FlatParameter& unit) {
      Unit of{unit.name, unit.layout, unit.is_zero_copy(), unit.precision, std::string(unit.placement->scheme.name())};
      of.is_frozen = unit.is_frozen, of.has_master = unit.has_master, of.held_format = unit.held_format;
      return of;
    }
    std::int64_t weights_bytes() const {
      if (held_format != nullptr) return held_format->bytes(layout->shard_elems());
      return layout->held_elems() * size_of(has_master ? DType::f32 : DType::bf16);
    }
  };
  std::vector<Unit> units;
  /// A module or a parameter of the model, and the unit that it is or is a part of.
  struct Place {
    std::string name;
    int unit = 0;
    bool is_unit = false;
  };
  std::vector<Place> places;
  std::vector<std::string> lists;     ///< lists of what is gathered ahead of which, where `plan.*` says it
  std::vector<std::string> warnings;  ///< parts of these that do not go with the order in which units ran
  std::vector<Action> micro_batch;    ///< the actions of the last micro-batch of a steady step
  std::vector<std::size_t> moments;   ///< length of `trace` before each of them
  ExecOrder train_order, eval_order;
  std::int64_t persistent_bytes = 0;  ///< counted on this rank between steps
  std::int64_t step_peak_bytes = 0;   ///< counted within a step: what metrics call peak_bytes
  std::int64_t peak_bytes = 0;  ///< the largest of a step's, a validation's and the end's (weights saved, text sampled)
  /// Bytes taken from the system for it, at once: a device's slab, and its part of shared memory.
  std::int64_t reserved_bytes = 0;
  std::int64_t shared_bytes = 0;                ///< part of these in memory that the ranks of a host share
  std::map<std::string, std::int64_t> at_peak;  ///< live bytes by kind when a step is at its peak
  std::vector<PlannedBuffer> buffers;           ///< buffers of the second step; moments are indices into `trace`
  std::vector<TraceEntry> trace;                ///< trace of the second step
  ShardGroups::Sent sent;        ///< by this rank, in those micro-batches of the second step that `trace` has
  ScratchBytes scratch_bytes{};  ///< scratch of each stream
  /// Bytes of the host, page-locked at once where there is a GPU: for uploads, and for streams.
  std::int64_t pinned_bytes = 0;
  std::int64_t upload_bytes = 0;                     ///< part of these for uploads
  std::map<std::string, std::int64_t> host_by_kind;  ///< part of these that the host keeps between steps
  std::int64_t host_bytes = 0;                       ///< all that is counted there in a step
  RankBytes::OnDisk disk_bytes;                      ///< bytes that a disk keeps (offload.*)
  /// Part of these for each stream: what ranks without NCCL exchange, what the host looks at.
  ScratchBytes staging_bytes{};
  DeviceKind device = DeviceKind::cpu;

  RankBytes rank_bytes() const { return {reserved_bytes, pinned_bytes, disk_bytes}; }
  /// A device whose memory is allocated at once, and is enough for a run by this plan; pinned memory that
  /// `options` asks for is there beside it. `make`: what stands for Device::create in tests.
  using MakeDevice = std::function<std::unique_ptr<Device>(DeviceKind, const DeviceOptions&)>;
  std::unique_ptr<Device> create_device(DeviceOptions options, const MakeDevice& make = Device::create) const;
  /// Takes the streams' working memory, before anything else does, as create_device does.
  void reserve(Device& created) const;
  /// Gives a session the recorded order, before its first step.
  void apply_order(ShardedRuntime& runtime) const;
};

/// Options of a plan: whose it is, and how much of it.
struct PlanOptions {
  int rank = 0, ranks = 1;
  int threads = 1;                      ///< team of the compute stream: kernels may need scratch for each
  DeviceKind device = DeviceKind::cpu;  ///< whose kernels need scratch of their own
  Transport transport = Transport::local;
  std::vector<int> hosts = {};  ///< host of each rank; none: one for all
  bool sums_in_rank_order = false;
  bool cudnn_attention = false;  ///< the device has cuDNN's attention: the working memory of its kernels
  /// Keeps every micro-batch. Else the trace of a step leaves out the micro-batches that find the memory as the one
  /// before did, but for the last: they would do the same. The bytes are the same.
  bool has_every_micro_batch = false;
  std::int64_t validation_windows = std::numeric_limits<std::int64_t>::max();  ///< a validation reads no more; 0: none
  std::function<void(Session&)> evaluate = {};                                 ///< rest of a validation, on any session
};

/// Options for this rank of this world.
PlanOptions plan_options(const World& world, int threads);

/// A validation over so many windows reads none of them twice: the last batch may be a part of one.
void limit_validation(Config& config, std::int64_t windows);

TrainPlan make_plan(const Config& config, const PlanOptions& options);
inline TrainPlan make_plan(const Config& config, int rank, int ranks) {
  return make_plan(config, {.rank = rank, .ranks = ranks});
}

/// Plan of a session without an optimizer that does this work, which goes through every micro-batch that a run may
/// have: from it a device is made, and a session's order. It has no steps.
TrainPlan make_inference_plan(const Config& config, const PlanOptions& options,
                              const std::function<void(Session&)>& work);

/// The plan as text: units, buffers by kind (`is_full`: and one by one), schedule.
std::string describe(const TrainPlan& plan, const Config& config, int ranks, bool is_full = false);

}  // namespace zs
