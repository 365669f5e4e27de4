#pragma once

#include <memory>
#include <string>

#include "comm/world.h"
#include "runtime/device/device.h"

namespace zs {

/// Arithmetic of communication on the stream, as the kernels' table has it (KernelTable, functions of the same names).
struct GpuArithmetic {
  void (*cast)(ExecContext& exec, Buffer out, Buffer in) = nullptr;
  void (*accumulate)(ExecContext& exec, Buffer out, Buffer in) = nullptr;
  void (*pack_int8)(ExecContext& exec, Buffer packed, Buffer elements, int slices) = nullptr;
  void (*reduce_int8)(ExecContext& exec, Buffer out, Buffer packed, int parts, bool accumulate) = nullptr;

  template <class Table>
  static GpuArithmetic of(const Table& kernels) {
    return {kernels.cast, kernels.accumulate, kernels.pack_int8, kernels.reduce_int8};
  }
};

/// The ranks of `base` (mpi, shm, hier or local), which must outlive it, whose communicators work on buffers of a GPU:
/// transport "staged". Every operation is copied to this host's memory (PinnedMemory), done there by `base`, and copied
/// back: sums are those of `base`, to the bit, but what travels as int8 is packed and added up by the GPU, in rank
/// order over all ranks. The host waits inside each call for the stream to come to it and for the other ranks, so all
/// ranks must issue the operations of all communicators in the same order, and nothing runs beside anything. For tests,
/// for several ranks on one GPU, and where there is no NCCL. `device`, a CUDA device, outlives it too. `timeout_s`: the
/// longest wait for this rank's own GPU. Without `arithmetic` nothing travels as int8.
std::unique_ptr<World> make_staged_world(World& base, Device& device, double timeout_s,
                                         const GpuArithmetic& arithmetic = {});

struct NcclLibrary;
class NcclMemory;

/// Options of make_nccl_world and make_nccl_memory.
struct NcclOptions {
  double timeout_s = 300;           ///< longest wait for a peer, as in WorldOptions
  GpuArithmetic arithmetic = {};    ///< else reductions into another dtype or onto an accumulator are refused, and int8
  bool checks_order = true;         ///< hosts tell each other what they launch, see make_nccl_world
  bool sums_in_rank_order = false;  ///< also for a reduce_scatter of f32, made as those of bf16 into f32 are
  /// Registered with each communicator, if every rank has as much of it: see NcclMemory, which is then where `device`
  /// has its slab. Null: nothing is.
  std::shared_ptr<NcclMemory> memory = nullptr;
  const char* library = "libnccl.so.2";
  std::string folders = {};                            ///< separated by colons, where it is looked for first
  std::shared_ptr<const NcclLibrary> table = nullptr;  ///< instead of the library, for tests
};

/// Operations of several communicators on one GPU shall keep the host's order, which all ranks share:
/// NCCL_LAUNCH_ORDER_IMPLICIT=1, unless it is set already. In main, before there are threads: they read the
/// environment, and NCCL does when it starts.
void set_nccl_environment();

/// World of the same ranks over NCCL, on the streams themselves: transport "nccl". `device` holds this rank's GPU, one
/// GPU a rank. Differences from other transports:
/// - Sums of a reduce_scatter into the same dtype, and of an all_reduce, have NCCL's order, and bf16 is carried as NCCL
///   carries it. From bf16 into f32 the slices travel as they are and are added in f32, in rank order. Onto an
///   accumulator of the same dtype NCCL's sum is added: f32 and bf16 only. There are no reductions of u8 and u16.
/// - The maximum and the minimum pass over NaNs, as NCCL's do.
/// - There are no shared windows. `split` waits for what the communicator has been given to do.
/// - All ranks must issue the operations of all communicators in the same order, whatever their streams.
/// - NCCL compares nothing. With `checks_order` a thread of each communicator tells the others' what was launched:
///   ranks that disagree, or that do not come within the timeout, are an Error of the stream's next synchronize at the
///   latest, which names them; data may have mixed by then. Without it such ranks hang until the device's
///   sync_timeout_s, or mix data.
/// A failure of NCCL or of a peer ends (aborts) the communicator: its operations end, and the stream's error says why.
/// Error(config) where the library is missing or older than 2.18, or set_nccl_environment was not called. Collective,
/// blocks the host.
std::unique_ptr<World> make_nccl_world(World& base, Device& device, const NcclOptions& options);

/// Registrations so far of the communicators of an NCCL world that have this rank and at least one more.
struct NcclRegistration {
  std::int64_t bytes = 0;    ///< bytes registered with each
  int communicators = 0;     ///< number of communicators that they are registered with
  std::string refusal = {};  ///< reason why nothing was registered with the last one, where nothing was
};
/// Registrations of an NCCL world; nothing for another world.
NcclRegistration registration_of(const World& world);
/// Memory that NCCL registers; null where NCCL cannot register any: before 2.19. Error(config) as make_nccl_world.
std::shared_ptr<NcclMemory> make_nccl_memory(const NcclOptions& options);

}  // namespace zs
