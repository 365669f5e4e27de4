#pragma once

#include "runtime/device/cpu_stream.h"
#include "runtime/device/device.h"

namespace zs {

/// This rank's share of the CPU: one thread per stream role, a pool over ordinary memory, or over what its options say.
class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const DeviceOptions& options);
  ~CpuDevice() override;

  DeviceKind kind() const override { return DeviceKind::cpu; }
  Stream& stream(StreamRole role) override;
  Allocator& allocator() override { return state_->allocator; }
  Pool& pool() override { return state_->pool; }
  Profile& profile() override { return state_->group.profile; }
  Scratch& scratch() override { return state_->scratch; }
  PinnedMemory& pinned_memory() override { return state_->pinned; }
  std::exception_ptr last_thrown() const override { return state_->group.last_thrown; }
  std::uint64_t completed() const override;
  std::string activity() const override { return state_->group.activity(); }
  bool is_awaited() const override;
  void keep(std::vector<std::shared_ptr<void>> memory) override { state_->kept.push_back(std::move(memory)); }

 private:
  /// All that a stream's thread may touch. Destroyed only after the threads have ended.
  struct State {
    State(const DeviceOptions& options, Trace& trace, MemoryCounter& counter);
    ~State() { drop(); }
    State(const State&) = delete;
    State& operator=(const State&) = delete;

    /// Blocks of the streams, while those still live.
    void drop() noexcept;

    std::vector<std::vector<std::shared_ptr<void>>> kept;
    std::unique_ptr<Allocator> ordinary = make_cpu_allocator();
    Allocator& allocator;
    Pool pool;
    Scratch scratch{pool};
    PinnedMemory pinned;
    CpuStreamGroup group;
    std::array<std::unique_ptr<CpuStream>, kStreamRoles> streams;
  };
  std::unique_ptr<State> state_;
};

}  // namespace zs
