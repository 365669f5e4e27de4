#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/world.h"
#include "runtime/shard/flat_layout.h"
#include "runtime/shard/scheduler.h"
#include "runtime/tensor/context.h"
#include "runtime/tensor/parameter.h"

namespace zs {

struct Precision {
  DType param = DType::f32;   ///< runtime parameters and activations
  DType reduce = DType::f32;  ///< full gradient buffers, and what a reduction carries
};

/// One flat parameter: its layout, its persistent shards and its transient full buffers. `master` (f32 weights), `grad`
/// (f32, reduced) and, where parameters run in bf16, `narrow` (their bf16 copy, written by the optimizer) hold
/// layout.shard_elems() elements each.
struct FlatParameter {
  FlatParameter(std::string unit_name, std::vector<Parameter*> members, FlatLayout flat_layout)
      : name(std::move(unit_name)), parameters(std::move(members)), layout(std::move(flat_layout)) {}

  std::string name;
  std::vector<Parameter*> parameters;  // in the order of layout.views()
  FlatLayout layout;

  Memory master, grad, narrow;
  bool grad_is_written = false;  // in this step

  Memory full, full_grad;      // while unsharded / while accumulating or reducing
  Event gathered, reduced;     // the latest
  bool is_waited_for = false;  // compute has waited for `gathered`

  Buffer master_buffer() const { return master.buffer(DType::f32, layout.shard_elems()); }
  /// bf16, or empty where parameters run in f32.
  Buffer narrow_buffer() const { return narrow ? narrow.buffer(DType::bf16, layout.shard_elems()) : Buffer{}; }
  /// What is gathered.
  Buffer param_buffer() const { return narrow ? narrow_buffer() : master_buffer(); }
  Buffer grad_buffer() const { return grad.buffer(DType::f32, layout.shard_elems()); }
};

/// Turns the scheduler's actions into work on streams: memory from pools, collectives, events, and the binding of parameters to
/// views. Owned by a ShardedRuntime; one host thread uses it. On return from every function: enqueued, not done.
class Executor {
 public:
  Executor(Context& context, World& world, const Precision& precision);
  /// Waits for the streams: their work uses the arena.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Allocates the persistent shards and fills `master` with each parameter's initial values, drawn by (seed, name, element),
  /// so that they depend on nothing else.
  void add_unit(std::string name, const std::vector<Parameter*>& parameters, std::uint64_t seed);
  void run(const std::vector<Action>& actions);

  /// Compute waits for every reduction so far: call before the gradient shards are read there.
  void wait_reductions();
  /// The master shards (and their narrow copies) were written by compute work enqueued so far; the next gathers wait for it.
  void masters_updated();
  /// The host filled the master shards while the device was idle: their narrow copies follow, and the next gathers wait for those.
  void masters_loaded();
  /// The next reduction of each unit starts a new sum.
  void clear_gradients();

  /// Gathers one unit's f32 master weights and hands them to the host: `use(parameter, values)` for every parameter of the
  /// unit, on every rank. Collective; blocks.
  using UseParameter = std::function<void(const Parameter& parameter, const float* values)>;
  void read_full(int unit, const UseParameter& use);

  std::vector<FlatParameter>& units() { return units_; }
  const std::vector<FlatParameter>& units() const { return units_; }
  int rank() const { return gather_comm_->rank(); }
  int ranks() const { return gather_comm_->size(); }
  /// For small reductions on the compute stream: losses and norms.
  Communicator& compute_comm() { return *compute_comm_; }
  Context& context() { return context_; }

 private:
  void initialise(FlatParameter& unit, std::uint64_t seed);
  void narrow_master(FlatParameter& unit);
  void gather(FlatParameter& unit);
  void wait_gathered(FlatParameter& unit);
  void free_full(FlatParameter& unit);
  void begin_gradient(FlatParameter& unit);
  void reduce(FlatParameter& unit);
  void release_gradient(FlatParameter& unit);
  void zero(Stream& stream, const char* name, std::vector<Buffer> buffers);
  /// One rank's shards are the parameters: nothing is gathered.
  bool is_gather_free() const { return ranks() == 1; }
  Stream& stream(StreamRole role) { return context_.device().stream(role); }

  Context& context_;
  Precision precision_;
  std::unique_ptr<Communicator> gather_comm_, reduce_comm_, compute_comm_;
  std::optional<Pool> arena_;  // where the transport prefers its own memory
  Pool& comm_pool_;            // everything that is communicated
  std::vector<FlatParameter> units_;
  Event masters_ready_, last_reduction_;
};

}  // namespace zs
