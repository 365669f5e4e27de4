#pragma once

#include "kernels/kernels.h"
#include "runtime/device/device.h"

namespace zs {

/// Where tensors of one runtime live and run: a device, its compute stream and its kernels, and whether ops record for
/// backward. Owned by the runtime, outlives every tensor made in it; one host thread uses it.
class Context {
 public:
  explicit Context(Device& device) : device_(device), kernels_(cpu_kernels()) {}
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  Device& device() const { return device_; }
  Stream& stream() const { return device_.stream(StreamRole::compute); }
  Pool& pool() const { return device_.pool(); }
  const KernelTable& kernels() const { return kernels_; }

  /// Enqueues work on the compute stream. Work captures buffers and scalars by value, never tensors: memory is ordered by
  /// the stream, not by references.
  void launch(OpInfo info, Work work) const { stream().enqueue(std::move(info), std::move(work)); }

  bool is_grad_enabled() const { return grad_enabled_; }
  std::uint64_t next_sequence() { return ++sequence_; }

 private:
  friend class NoGradGuard;
  Device& device_;
  const KernelTable& kernels_;
  bool grad_enabled_ = true;
  std::uint64_t sequence_ = 0;  // creation order of autograd nodes
};

/// Ops record nothing while it lives.
class NoGradGuard {
 public:
  explicit NoGradGuard(Context& context) : context_(context), previous_(context.grad_enabled_) { context.grad_enabled_ = false; }
  ~NoGradGuard() { context_.grad_enabled_ = previous_; }
  NoGradGuard(const NoGradGuard&) = delete;
  NoGradGuard& operator=(const NoGradGuard&) = delete;

 private:
  Context& context_;
  bool previous_;
};

}  // namespace zs
