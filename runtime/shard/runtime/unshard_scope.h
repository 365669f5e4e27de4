#pragma once

#include <concepts>
#include <optional>
#include <unordered_map>
#include <vector>

#include "runtime/shard/runtime/sharded_runtime.h"

namespace zs {

/// Options of an UnshardScope, alike on every rank.
struct UnshardOptions {
  bool recurse = true;      ///< units below the module too; else its own. Lists of units are taken as they are
  bool writes_back = true;  ///< at the end; false: for reading, and what is written all the same is a LostWrite
  std::optional<int> only_rank = {};  ///< the other ranks see nothing, and hold no more than their shards
  bool on_host = false;  ///< in Device::pinned_memory(), so that no more than one unit at a time is on the device
  bool with_gradients = false;  ///< the sums of this step too
  enum class After : std::uint8_t { write_back, discard };
  After after_exception = After::write_back;  ///< fate of what is written when an exception ends the scope
};

/// While it lives the parameters of some units are whole, in f32, as the optimizer keeps them, in memory of its own:
/// what is gathered by the schedule or by hand stays as it is. Compute work, or with `on_host` the host, reads and
/// writes `value(parameter)`; at the end each rank's own part becomes the weights, or with `only_rank` every rank gets
/// its part of what that rank has. Between micro-batches, alike on every rank; one host thread uses it.
///
///     {
///       UnshardScope scope(runtime, model);
///       context.launch({"edit", {}, {scope.value(weight)}}, ...);
///     }
///
/// Whatever ranks write back must be alike on all of them, or it is an Error(ranks_disagree) of every rank's next
/// synchronize, which names the parameter: one rank that alone knows the values uses `only_rank`. A LostWrite is,
/// likewise, every rank's next synchronize's.
///
/// An exception that ends the scope: each rank stores its own part, or not, by `after_exception`, and waits for nobody.
/// Where that takes the others (with `only_rank`, and of zero-copy units, whose shards they may be reading) what was
/// written is discarded, and a line on stderr says so. The ranks compare at the next micro-batch, or before the
/// optimizer, what they have done.
///
/// Meanwhile, hooks, a micro-batch, an optimizer's step, a load, a save, an abandoned step, and unshard() or reshard()
/// of its units or another scope of them, are UsageErrors that name a unit.
class UnshardScope {
 public:
  /// Enters the units one after the other, and leaves them in reverse. Collective: enqueued, not done; with `on_host`
  /// it blocks. UsageError within a micro-batch, of a unit in another scope, and of gradients that are not reduced to
  /// the end. Where a unit cannot be entered, those before it are left again, in reverse.
  UnshardScope(ShardedRuntime& runtime, const std::vector<int>& units, const UnshardOptions& options = {});
  /// Enters the units that hold a module's parameters (Module::units_in): the unit that it is, or is a part of; with
  /// `recurse` those below it too. Of a module without parameters of its own, such as a list of blocks, it enters the
  /// blocks' units either way, and not the unit around it.
  template <class Module>
  requires requires(const Module& module, const ShardedRuntime& runtime) {
    { module.units_in(runtime, true) } -> std::convertible_to<std::vector<int>>;
  }
  UnshardScope(ShardedRuntime& runtime, const Module& module, const UnshardOptions& options = {})
      : UnshardScope(runtime, module.units_in(runtime, options.recurse), options) {}
  ~UnshardScope() noexcept(false);
  UnshardScope(const UnshardScope&) = delete;
  UnshardScope& operator=(const UnshardScope&) = delete;

  /// f32, of the parameter's shape; empty on a rank that sees nothing. UsageError where the parameter is in none of the
  /// units.
  Buffer value(const Parameter& parameter) const;
  /// The sum of this step's gradients over the ranks, f32: divided, as the optimizer has it, after the step's last
  /// micro-batch; not yet divided (ShardOptions::division) before. Empty where the unit has none, or the parameter is
  /// frozen.
  Buffer gradient(const Parameter& parameter) const;
  const std::vector<int>& units() const { return units_; }

  /// Earlier than the end: what was written so far are the weights, and the gradients, from now on. With `on_host` it
  /// blocks.
  void write_back();

 private:
  struct Entered {
    int unit;
    WholeUnit weights = {}, gradients = {};  // on the device or, with on_host, on the host
    WriteCheck::Values values = {};          // values of both
    Memory hashes = {};                      // hashes, in a scope for reading
    WriteCheck::Written written = {};
  };
  void check() const;
  void check_gradients(int unit) const;
  void wait_gradients();
  void enter_all();
  void enter(Entered& entered);
  WholeUnit take(FlatParameter& unit, const HeldShards& shards, Entered& entered);
  void end();
  void end_by_exception() noexcept;
  void write_back(Entered& entered);
  bool is_storable_alone(const FlatParameter& unit) const { return !options_.only_rank && !unit.is_zero_copy(); }
  void store_alone(Entered& entered);
  void warn_of_discarded() const;
  void put(FlatParameter& unit, const HeldShards& shards, const WholeUnit& from);
  void leave_all() noexcept;
  void warn_of_host();
  bool is_seen() const { return !options_.only_rank || *options_.only_rank == runtime_.executor().rank(); }
  FlatParameter& flat(int unit) const { return runtime_.executor().units().at(static_cast<std::size_t>(unit)); }
  std::int64_t number_of_options() const;
  static Buffer find(const std::unordered_map<const Parameter*, Buffer>& buffers, const Parameter& parameter);

  ShardedRuntime& runtime_;
  Lifetime::Watch model_{runtime_.executor().step().life()};
  std::vector<int> units_;
  UnshardOptions options_;
  int exceptions_;
  std::vector<Entered> entered_;
  std::unordered_map<const Parameter*, Buffer> values_, gradients_;  // buffers of each parameter of the units
};

/// The weights of every rank become those that rank `root` has or, where it is sharded, gathers; so does the seed, from
/// which weights that nobody has changed yet are drawn anew. The optimizer's moments stay as they are. Collective,
/// between steps; blocks. Memory: one unit's f32 weights, on that rank.
void broadcast_parameters(ShardedRuntime& runtime, int root = 0);

}  // namespace zs
