#pragma once

#include <string>

namespace zs {

/// Residence of the f32 shards of a unit: the device, or memory of the host (Device::pinned_memory) or a disk, from
/// where they come to the device for as long as they are worked on.
struct Residence {
  bool has_masters_on_host = false;       ///< each gather of an f32 unit brings them
  bool has_moments_on_host = false;       ///< the optimizer's state
  bool has_gradients_on_host = false;     ///< reduced, between micro-batches and until the update
  bool has_accumulators_on_host = false;  ///< gradients not reduced, or by half, between micro-batches
  double cpu_link_gbs = 0;  ///< 10^9 bytes a second that a CPU device moves between the two; 0: what it can
  /// The optimizer's update is made by the host's processors, where all that it reads and writes lies in the host's
  /// memory: the three above, as far as there are such; of bf16 units the new copy comes to the device. For AdamW, Lion
  /// and Sgd. The CPU's arithmetic: on a GPU the last bits may be others than the device's.
  bool updates_on_host = false;
  /// Folders: what the host keeps of masters and of the optimizer's state is in a file there (DiskFile), not in its
  /// memory. Empty: in memory.
  std::string masters_disk = {}, moments_disk = {};

  /// True if the host keeps any shard that an optimizer works on.
  bool has_any() const { return has_masters_on_host || has_moments_on_host || has_gradients_on_host; }
  bool operator==(const Residence&) const = default;
};

}  // namespace zs
