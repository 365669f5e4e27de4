#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/world.h"
#include "model/job/gpu_options.h"
#include "model/sharding/fully_shard.h"
#include "runtime/device/device.h"
#include "runtime/tensor/context.h"

namespace zs {

/// Surroundings that zs::run makes for a program, on one rank: where it is among the others, and where its tensors
/// live. Its parts outlive the body that is given it.
struct Job {
  World& world;    ///< world whose communicators move what is on the device
  Device& device;  ///< a GPU where each rank can use one, else this rank's share of the CPUs
  Context& context;
  std::vector<std::string> arguments;  ///< arguments of main, after the program's name

  int rank() const { return world.rank(); }
  int ranks() const { return world.size(); }
  bool is_first() const { return rank() == 0; }
};

/// Options by which zs::run finds ranks and devices.
struct RunOptions {
  double timeout_s = 300;  ///< longest wait for another rank within one operation
  int threads = 0;         ///< team of each rank's CPU device; 0: its share of the host's CPUs, or OMP_NUM_THREADS
  std::string transport = "auto";  ///< as for make_process_world
  int local_ranks = 0;             ///< above 0: so many threads of this process are the ranks, and mpirun is not asked
  std::string device = "auto";     ///< "cpu", "cuda", or a GPU where every rank can use one
  GpuOptions cuda = {};            ///< options for GPUs
};

/// A program's main function: `body`, on each rank. The ranks are those of mpirun, or there is one alone. The world is
/// the fastest that the hosts allow, and the device a GPU where every rank can use one, else this rank's share of its
/// host's CPUs, with memory that needs no copy on its way to other ranks. Where some rank sees a GPU that is not used,
/// rank 0 says why in one line. When body returns, what it has enqueued is waited for.
///
/// Gives the exit code: 0, or that of the zs::Error which body throws, or 1 for another exception. Then every rank of
/// the job ends, and one line says why: "program: error: what (where, rank 2): what to do". What another rank has
/// caused is that rank's to say. Where ranks do not communicate alike, the line says what each did.
///
///     int main(int argc, char** argv) {
///       return zs::run(argc, argv, [](zs::Job& job) {
///         Net net;
///         zs::ShardedModel model = zs::fully_shard(net, job);
///         ...
///       });
///     }
[[nodiscard]] int run(int argc, char** argv, const std::function<void(Job& job)>& body, const RunOptions& options = {});

/// Shards over the ranks of the job.
[[nodiscard]] inline ShardedModel fully_shard(Module& root, Job& job, const FullyShardOptions& options = {}) {
  return fully_shard(root, job.context, job.world, options);
}

}  // namespace zs
