#pragma once

#include "runtime/device/cuda_stream.h"
#include "runtime/device/device.h"

namespace zs {

/// One GPU, held by this rank (DeviceOptions::gpu): a stream of the driver for each role, a pool over the GPU's memory. Times of the work
/// are the GPU's own, and reach `profile` when the stream is synchronised.
class CudaDevice final : public Device {
 public:
  CudaDevice(const DeviceOptions& options, CudaContext::Libraries libraries);
  ~CudaDevice() override;

  DeviceKind kind() const override { return DeviceKind::cuda; }
  Stream& stream(StreamRole role) override { return *state_->streams[static_cast<std::size_t>(role)]; }
  Allocator& allocator() override { return *state_->allocator; }
  Pool& pool() override { return state_->pool; }
  Profile& profile() override { return profile_; }
  Scratch& scratch() override { return state_->scratch; }
  std::uint64_t completed() const override;
  std::int64_t locked_bytes() const override { return state_->uploads.locked_bytes(); }
  std::string activity() const override { return state_->group.activity(); }
  void keep(std::vector<std::shared_ptr<void>> memory) override { state_->kept.push_back(std::move(memory)); }
  const CudaGpu& gpu() const { return state_->context.gpu(); }
  const CudaContext& context() const { return state_->context; }

 private:
  /// All that the GPU may still use. Destroyed only after the streams have ended.
  struct State {
    State(const DeviceOptions& options, CudaContext::Libraries libraries, Trace& trace, MemoryCounter& counter, Profile& profile);
    ~State();
    State(const State&) = delete;
    State& operator=(const State&) = delete;

    std::vector<std::vector<std::shared_ptr<void>>> kept;
    CudaContext context;
    UploadRing uploads;
    std::unique_ptr<Allocator> allocator = make_cuda_allocator(context);
    Pool pool;
    Scratch scratch{pool};
    CudaStreamGroup group;
    std::array<std::unique_ptr<CudaStream>, kStreamRoles> streams;
  };
  Profile profile_;
  std::unique_ptr<State> state_;
};

}  // namespace zs
