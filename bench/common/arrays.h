#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/tensor/context.h"

namespace zs::bench {

/// The table of the device whose stream this is.
const KernelTable& kernels_of(const ExecContext& exec);

/// Enqueues the filling of `out` (f32 or bf16) with numbers in [low, high), a sequence of 65,537 of them over and over.
void enqueue_random(Stream& stream, Buffer out, float low, float high);

/// The operands of one kernel while it is measured. Made by the host, filled on the compute stream, all given back
/// together. Must not outlive the device; synchronise it first.
class Arrays {
 public:
  /// All arrays that fit come out of one block of `slab_bytes`, as the arrays of a training step do: on large pages.
  explicit Arrays(Device& device, std::int64_t slab_bytes = 0)
      : kernels_(Context(device).kernels()),
        stream_(device.stream(StreamRole::compute)),
        pool_(device.allocator(), counter_, false, slab_bytes) {}

  /// The device's, as its options have them.
  const KernelTable& kernels() const { return kernels_; }

  /// Numbers in [low, high); f32 or bf16.
  Buffer random(std::int64_t elems, DType dtype, float low = -0.5f, float high = 0.5f);
  /// The same array for the same `name`: tables of which a call touches a part only.
  Buffer shared_random(const std::string& name, std::int64_t elems, DType dtype);
  /// i32 numbers in [0, limit), different as long as elems <= limit and limit is no multiple of 7919; others for
  /// another set.
  Buffer ids(std::int64_t elems, std::int64_t limit, int set);
  /// Copies of `values`.
  Buffer floats(std::vector<float> values);
  Buffer zeros(std::int64_t elems, DType dtype);

  /// Of all arrays so far, without the shared ones; and of those alone.
  std::int64_t own_bytes() const { return own_bytes_; }
  std::int64_t shared_bytes() const { return shared_bytes_; }

 private:
  Buffer acquire(std::int64_t elems, DType dtype);

  const KernelTable& kernels_;
  Stream& stream_;
  MemoryCounter counter_;
  Pool pool_;
  std::vector<Memory> memory_;
  std::map<std::string, Buffer> shared_;
  std::int64_t own_bytes_ = 0, shared_bytes_ = 0;
};

}  // namespace zs::bench
