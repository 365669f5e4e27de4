#include "runtime/shard/offload/activation_store.h"

#include <utility>

#include "runtime/shard/offload/link_copy.h"

namespace zs {

void ActivationStore::begin_micro_batch() {
  for (Slot& slot : slots_) {
    settle(slot);
    slot.here = {};
  }
  kept_ = 0;
}

/// Sends the input that was kept last to the host: its own function's forward, which is enqueued, has read it. An input
/// with a handle elsewhere stays, since somebody reads it later.
void ActivationStore::before_forward() {
  if (kept_ > 1 && slots_[kept_ - 2].is_moving) {
    settle(slots_[kept_ - 2]);
    slots_[kept_ - 2].here = {};
  }
  if (kept_ > 0 && !stays(kept_ - 1) && slots_[kept_ - 1].here.is_sole_owner()) send(slots_[kept_ - 1]);
}

std::function<Tensor()> ActivationStore::keep(Tensor input) {
  ZS_CHECK(kept_ < slots_.size(), "a micro-batch keeps more than {} inputs", slots_.size());
  Slot& slot = slots_[kept_];
  slot.shape = input.shape();
  slot.dtype = input.dtype();
  slot.here = std::move(input);
  return [this, at = kept_++] { return take(at); };
}

void ActivationStore::send(Slot& slot) {
  const Buffer from = slot.here.buffer();
  if (slot.host.bytes() < from.bytes())
    slot.host = context_.device().pinned_memory().acquire(from.bytes(), offload(), "activation");
  Event is_read;
  context_.stream().record(is_read);
  offload().wait(is_read);
  enqueue_link_copy(context_, cpu_link_gbs_, "store_to_host:activation", slot.host.buffer(slot.dtype, from.elems),
                    from);
  offload().record(slot.moved);
  slot.is_moving = true;
}

void ActivationStore::fetch(Slot& slot) {
  if (slot.here) return;
  slot.here = Tensor::empty(context_, slot.shape, slot.dtype);
  const Buffer to = slot.here.buffer();
  Event is_free;  // last use of this memory by whoever had it before
  context_.stream().record(is_free);
  offload().wait(is_free);
  enqueue_link_copy(context_, cpu_link_gbs_, "load_from_host:activation", to, slot.host.buffer(slot.dtype, to.elems));
  offload().record(slot.moved);
  slot.is_moving = true;
}

void ActivationStore::settle(Slot& slot) {
  if (std::exchange(slot.is_moving, false)) context_.stream().wait(slot.moved);
}

Tensor ActivationStore::take(std::size_t at) {
  Slot& slot = slots_[at];
  fetch(slot);
  if (at > 0) fetch(slots_[at - 1]);
  settle(slot);
  return std::exchange(slot.here, {});
}

}  // namespace zs
