#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "comm/world.h"
#include "runtime/device/device.h"

namespace zs::bench {

/// What a benchmark exchanges between its ranks: a few doubles at a time, on the compute stream. Lives no longer than
/// world and device; one host thread uses it. With one rank everything is a no-op.
class Ranks {
 public:
  /// Collective.
  Ranks(World& world, Device& device) : comm_(world.communicator()), device_(device) {}

  int size() const { return comm_->size(); }
  /// The compute streams of all ranks go on together. On return: enqueued, not done.
  void line_up() { comm_->barrier(device_.stream(StreamRole::compute), "bench"); }
  /// The hosts of all ranks go on together.
  void meet() {
    line_up();
    device_.synchronize();
  }
  /// Each value becomes its sum (largest) over the ranks. Collective; blocks the host.
  void reduce(std::span<double> values, ReduceOp op) {
    comm_->all_reduce(device_.stream(StreamRole::compute), "bench",
                      {values.data(), static_cast<std::int64_t>(values.size()), DType::f64, DeviceKind::cpu}, op);
    device_.synchronize();
  }
  double sum(double value) {
    reduce({&value, 1}, ReduceOp::sum);
    return value;
  }
  double max(double value) {
    reduce({&value, 1}, ReduceOp::max);
    return value;
  }

 private:
  std::unique_ptr<Communicator> comm_;
  Device& device_;
};

}  // namespace zs::bench
