#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "runtime/tensor/recompute.h"

namespace zs {

/// Keeps the inputs of recomputed functions, as a rule blocks, in the host's memory (Device::pinned_memory) from after
/// their forward until ahead of their backward. One goes there while the next function's forward runs, and comes back
/// while the backward of the one after it runs; the last `kStay` of a micro-batch stay, as they are needed at once.
/// All of it is by the offload stream; the compute stream waits where a copy takes longer than that. Owned by who runs
/// micro-batches; one host thread uses it.
class ActivationStore final : public InputKeeper {
 public:
  static constexpr std::size_t kStay = 2;

  /// Makes a store for a micro-batch with so many inputs, in the order of their forwards. `cpu_link_gbs`: as Residence
  /// has it.
  ActivationStore(Context& context, std::size_t inputs, double cpu_link_gbs)
      : context_(context), slots_(inputs), cpu_link_gbs_(cpu_link_gbs) {}

  /// Forgets what a micro-batch that was abandoned has left. Memory of the host stays.
  void begin_micro_batch();

  void before_forward() override;
  std::function<Tensor()> keep(Tensor input) override;

 private:
  struct Slot {
    Tensor here;  // empty: it is on the host
    Shape shape;
    DType dtype = DType::f32;
    Memory host;
    Event moved;  // the last copy
    bool is_moving = false;
  };
  bool stays(std::size_t slot) const { return slot + kStay >= slots_.size(); }
  Stream& offload() const { return context_.device().stream(StreamRole::offload); }
  void send(Slot& slot);
  void fetch(Slot& slot);
  /// Compute waits for the last copy.
  void settle(Slot& slot);
  Tensor take(std::size_t slot);

  Context& context_;
  std::vector<Slot> slots_;
  double cpu_link_gbs_;
  std::size_t kept_ = 0;  // number of inputs kept in this micro-batch
};

}  // namespace zs
