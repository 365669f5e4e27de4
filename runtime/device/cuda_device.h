#pragma once

#include "runtime/device/cuda_capture.h"
#include "runtime/device/cuda_stream.h"
#include "runtime/device/device.h"

namespace zs {

/// One GPU, held by this rank (DeviceOptions::gpu): a stream of the driver for each role, a pool over the GPU's memory.
/// Times of the work are the GPU's own, and reach `profile` when the stream is synchronised.
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
  PinnedMemory& pinned_memory() override { return state_->pinned; }
  std::exception_ptr last_thrown() const override {
    return state_->group.capture != 0 ? std::exception_ptr() : state_->group.last_thrown;
  }
  std::uint64_t completed() const override;
  std::string activity() const override { return state_->group.activity(); }
  void keep(std::vector<std::shared_ptr<void>> memory) override { state_->kept.push_back(std::move(memory)); }
  /// Runs `enqueue`, which gives the streams work, and keeps that instead of doing it: events among the streams are its
  /// order. First waits for what was enqueued before. Within, nothing may be uploaded, read back, waited for by the
  /// host, or allocated, and no event of before need be waited for. What communicators have to compare
  /// (StreamWatch::finish) they have compared on return, and nothing again in a replay. Throws what goes wrong; the
  /// streams are usable then, and nothing was done. The graph dies before what it communicates with.
  std::unique_ptr<CudaGraph> capture(const std::function<void()>& enqueue) { return state_->capture.capture(enqueue); }
  /// Enqueues it once more, after all that the streams were given and before all that they will be. `name`: as one
  /// operation.
  void replay(const CudaGraph& graph, const std::string& name = "replay") { state_->capture.replay(graph, name); }
  const CudaGpu& gpu() const { return state_->context.gpu(); }
  const CudaContext& context() const { return state_->context; }

 private:
  /// All that the GPU may still use. Destroyed only after the streams have ended.
  struct State {
    State(const DeviceOptions& options, CudaContext::Libraries libraries, Trace& trace, MemoryCounter& counter,
          Profile& profile);
    ~State();
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    /// Blocks of the streams, while those still live.
    void drop() noexcept;

    std::vector<std::vector<std::shared_ptr<void>>> kept;
    CudaContext context;
    PinnedMemory pinned;
    UploadRing uploads;
    std::unique_ptr<Allocator> allocator;
    Pool pool;
    Scratch scratch{pool};
    CudaStreamGroup group;
    CudaCapture capture{group};
    std::array<std::unique_ptr<CudaStream>, kStreamRoles> streams;
  };
  Profile profile_;
  std::unique_ptr<State> state_;
};

}  // namespace zs
