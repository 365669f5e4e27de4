#pragma once

#include <functional>
#include <memory>

#include "comm/world.h"
#include "runtime/device/cuda_device.h"
#include "tests/gpu/emulation/emulated_cublas.h"
#include "tests/gpu/emulation/fake_nccl.h"
#include "tests/shard/tiny_training.h"

namespace zs::test {

/// Two blocks of width 16, sequences of 8, two micro-batches a rank; not deterministic.
Config small_config(int ranks);
void choose_bf16(Config& config, const std::string& reduce);

/// A machine with GPUs for tests of several ranks, which are its threads: emulated GPUs, one a rank, whose memory the
/// host cannot touch, with an NCCL made for tests; or, where tests run on a GPU (is_on_real_gpu), those that are there,
/// shared if they are fewer than ranks. One at a time.
class GpuMachine {
 public:
  explicit GpuMachine(int ranks, std::uint64_t seed = 1);
  ~GpuMachine();
  GpuMachine(const GpuMachine&) = delete;
  GpuMachine& operator=(const GpuMachine&) = delete;

  /// Whether NCCL can connect its ranks: it is there, and two of them on one GPU it refuses.
  bool has_nccl() const { return has_nccl_; }
  /// The NCCL made for tests; null on real GPUs.
  FakeNccl* fake_nccl() const { return fake_nccl_.get(); }
  /// Null on real GPUs.
  EmulatedDriver* emulated() const { return emulated_.get(); }
  EmulatedCublas* emulated_cublas() const { return emulated_cublas_.get(); }
  /// Emulated ranks but the first have this one.
  void give_others(std::shared_ptr<const CublasLt> library) { others_library_ = std::move(library); }
  /// What nobody has given back, of emulated GPUs and NCCL.
  std::size_t live_handles() const;

  using Body = std::function<void(World& world, CudaDevice& device, const TrainPlan& plan)>;
  /// Every rank on its GPU, with memory as planned for `config`. `transport`: nccl or staged.
  void run(const Config& config, Transport transport, const Body& body);
  /// Rank 0's result of `train_tiny` there; the memory of all ranks must have been that of their plans.
  TinyResult train(const Config& config, Transport transport, const TinyOptions& options = {});

 private:
  const int ranks_;
  int gpus_;
  bool has_nccl_ = true;
  std::unique_ptr<EmulatedDriver> emulated_;
  std::unique_ptr<EmulatedCublas> emulated_cublas_;
  std::unique_ptr<FakeNccl> fake_nccl_;
  std::shared_ptr<const CublasLt> others_library_;
};

}  // namespace zs::test
