#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "bench/collectives/collective_sets.h"
#include "bench/common/copy_ceiling.h"
#include "bench/common/machine.h"
#include "bench/common/mpi_library.h"
#include "bench/common/ranks.h"

namespace zs::bench {

struct CollectiveOptions {
  std::vector<Collective> ops;  ///< empty: all
  std::vector<DType> dtypes;    ///< f32 and bf16; empty: both
  std::int64_t min_bytes = 4 << 10, max_bytes = 256 << 20;
  double min_time_s = 0.1;  ///< for each row
  bool messages = false;    ///< by messages too, where the world's transport has others
  bool compare = false;     ///< with the MPI library's own
};

/// Measures the collectives of a world's transport, on buffers from its arena, or those between its ranks' GPUs, as the
/// configuration says; in place where the operation allows it. What is compared takes turns. One host thread uses it;
/// every call is collective.
class CollectiveBench {
 public:
  CollectiveBench(World& world, const CollectiveOptions& options, const Config& config = {},
                  const Machine& machine = {});
  /// The same on every rank.
  CollectiveReport run();

 private:
  using Case = CollectiveCase;
  struct Candidate {
    std::string transport;
    Communicator* comm = nullptr;  // null: the library
    CollectiveSets* sets = nullptr;
    std::vector<double> rounds_us = {};
    std::int64_t calls_a_round = 1, wrong = 0;
  };

  bool is_on_gpus() const { return device_->kind() == DeviceKind::cuda; }
  World& measured_world() const { return gpu_world_ ? *gpu_world_ : world_; }
  std::unique_ptr<Device> make_device(const Config& config) const;
  /// Of a GPU's memory, for every case.
  std::int64_t room_bytes(const CudaGpu& gpu) const;
  Memory make_room();
  CollectiveReport run_on_cpus();
  CollectiveReport run_on_gpus();
  void measure_copy(CopyCeiling& copy);
  void measure_all();
  void measure(const Case& one);
  std::vector<Candidate> candidates(const Case& one, CollectiveSets& own, CollectiveSets& ordinary);
  void call(const Candidate& candidate, const Case& one, std::size_t set);
  double time_calls(const Candidate& candidate, const Case& one, std::int64_t calls);
  std::int64_t wrong_elements(const Candidate& candidate, const Case& one);

  World& world_;
  CollectiveOptions options_;
  Machine machine_;
  NcclOptions nccl_;
  std::unique_ptr<Device> device_, host_device_;  // the second where the first is a GPU
  Ranks ranks_;
  Memory room_;  // of a GPU
  std::unique_ptr<World> gpu_world_;
  std::unique_ptr<Communicator> comm_, messages_;  // the second where it is measured too
  std::optional<MpiLibrary> library_;
  CollectiveReport report_;
  std::int64_t sets_bytes_ = 0;  // that the sets of a rank have together, or more; the same on every rank
};

}  // namespace zs::bench
