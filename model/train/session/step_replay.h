#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "model/train/rank/step_agreement.h"
#include "runtime/device/cuda_device.h"

namespace zs {

/// Gives a GPU the work of steps that are alike: the first as ever, the second captured as a CUDA graph, and from then
/// on that graph, for as long as a step's key and the blocks of memory that are live when it begins are those of the
/// captured one. Any other step is enqueued as ever, and the next like that one is captured anew. Several ranks do the
/// same each time, so one that cannot replay takes the others along. On a device that is no GPU every step is enqueued.
/// Dies before the communicators and the device; one host thread uses it.
class StepReplay {
 public:
  /// Collective, of several ranks with GPUs, which nccl connects: Error(config) for the staged transport. `order`, of
  /// what is enqueued, outlives it.
  StepReplay(Device& device, World& world, OrderCheck& order);

  /// `enqueue` gives the device's streams the step's work, which the GPU does from memory that stays: nothing is
  /// uploaded or read back within. `key` says which work it is, but for the layout of memory. On return: enqueued, not
  /// done. Throws what `enqueue` and CudaDevice::capture throw; OrderMismatch on every rank, where they would not
  /// communicate alike, before any of it runs. Collective.
  void run(std::uint64_t key, const std::function<void()>& enqueue);

  /// The most counted bytes that were live in the last step, as if it had been enqueued.
  std::int64_t peak_bytes() const { return peak_bytes_; }
  std::int64_t captures() const { return captures_; }
  std::int64_t replays() const { return replays_; }
  /// A line to tell, once, after step `step`: the first was captured, or cannot be just now, by this rank or another.
  /// Empty: nothing new.
  std::string take_message(std::int64_t step) {
    return message_.empty() ? "" : "step " + std::to_string(step) + ": " + std::exchange(message_, {});
  }

 private:
  struct Kind {
    std::uint64_t key, layout;
    bool operator==(const Kind&) const = default;
  };
  /// Obstacle to a capture just now; empty: none.
  std::string obstacle() const;
  void enqueue_as_ever(const Kind& kind, const std::function<void()>& enqueue);
  void capture(const Kind& kind, const std::function<void()>& enqueue);

  Device& device_;
  CudaDevice* gpu_;                         // null: no GPU
  std::optional<StepAgreement> agreement_;  // agreement of the ranks, where there is one
  std::unique_ptr<CudaGraph> graph_;
  std::uint64_t name_ = 0;                   // the graph's
  std::optional<Kind> captured_, enqueued_;  // the graph's; of the last step, if it was enqueued as ever
  std::int64_t peak_bytes_ = 0, graph_peak_bytes_ = 0, captures_ = 0, replays_ = 0;
  bool has_told_obstacle_ = false;
  std::string message_;
};

}  // namespace zs
