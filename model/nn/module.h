#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "model/nn/forward_arguments.h"
#include "runtime/shard/runtime/sharded_runtime.h"
#include "runtime/tensor/parameter.h"

namespace zs {

struct Plan;
struct ResolvedPlan;

/// A part of a model: it owns its parameters and knows its children, and is written as if there were one device.
/// Sharding is applied from outside, by fully_shard or shard_module. A Layer is called, and need not say more; the
/// forward function of another module that may be a unit begins with `const ForwardScope scope = enter();`, which does
/// nothing unless it is one.
class Module {
 public:
  virtual ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// Path from the root, "blocks.3.attention"; empty for the root.
  const std::string& path() const { return path_; }
  const std::vector<std::unique_ptr<Parameter>>& own_parameters() const { return parameters_; }
  const std::vector<std::unique_ptr<Parameter>>& own_buffers() const { return buffers_; }
  const std::vector<Module*>& children() const { return children_; }
  /// True of a Layer whose subclasses are called as it is: its forward is virtual, or they have none of their own.
  virtual bool serves_subclasses() const { return false; }
  /// True if a plan by blocks makes this module a unit of its own.
  virtual bool is_block() const { return false; }

  /// The units of `runtime` that hold its parameters: the one that it is, or those that hold what it, or a module below
  /// it that is no unit, has; and behind them, with `recurse`, those of modules below it. Of a module that has none of
  /// its own, as a list of blocks, the first units below it. UsageError where the runtime does not shard it.
  std::vector<int> units_in(const ShardedRuntime& runtime, bool recurse) const;

  /// Makes this module the unit, which its forward opens.
  void attach(ShardedRuntime* runtime, int unit);
  /// Makes the forward open these units of its owner instead, parents before children: a hook of theirs, whose own
  /// forwards then open none.
  void open(std::vector<int> units);
  const std::vector<int>& opened() const { return opened_; }
  /// Makes this module a part of the unit, whose precision is its own too.
  void belong(ShardedRuntime* runtime, int unit) {
    owner_ = runtime;
    owner_unit_ = unit;
  }
  /// Detaches this module and what is below it: they are part of no unit any more.
  void detach();
  /// Runtime that this module is a unit of, or a part of one; null: nobody has sharded it.
  const ShardedRuntime* owner() const { return owner_; }
  int owner_unit() const { return owner_unit_; }
  bool is_unit() const { return is_unit_; }
  /// Policy that fully_shard was given for this module; none: it was not called for it.
  const std::optional<UnitPolicy>& own_policy() const { return own_policy_; }
  void set_own_policy(const UnitPolicy& policy);

  /// Shards the model instead of what shard_by_plan() does by the plan, for the root of a model that knows better: adds
  /// all of the runtime's units and is true, or does nothing.
  virtual bool shard_itself(ShardedRuntime&, const Plan&) { return false; }
  /// Sets the lists of what is gathered ahead, once the units are there; true or nothing done, as shard_itself.
  virtual bool set_prefetch_lists(ShardedRuntime&, const ResolvedPlan&) { return false; }

  /// Opens the module for whoever uses its parameters: while the scope lives, those of its unit are unsharded.
  ForwardScope enter() const { return {owner_, units_to_open()}; }
  /// Casts a tensor that comes in from other units, before it meets this one's parameters: where the unit's precision
  /// asks for it.
  Tensor input(const Tensor& x) const { return owner_ ? owner_->cast_input(owner_unit_, x) : x; }

 protected:
  explicit Module(std::string path);

  std::string path_of(const std::string& name) const;
  Parameter& add_parameter(const std::string& name, Shape shape, Init init, bool has_decay);
  /// Adds a buffer, which is kept beside the parameters: f32, not trained, whole on every rank and not reduced, of this
  /// value at first, and saved in checkpoints by its name. Its value() is there while the model is sharded; a forward
  /// writes it on the compute stream, alike on every rank, and not in the second run of a recomputed function.
  Parameter& add_buffer(const std::string& name, Shape shape, float constant);
  /// ShardedRuntime::mean_over_ranks of the model that this is a part of.
  Tensor mean_over_ranks(const Tensor& x) const { return owner_ ? owner_->mean_over_ranks(x) : x; }
  /// True if no bit may depend on the number of ranks.
  bool is_deterministic() const { return owner_ != nullptr && owner_->options().scheme.deterministic; }
  /// A child that is a member (or owned by a member) of the derived class; registration order is the order in the flat
  /// parameter.
  template <class M>
  M& add_child(M& child) {
    note_child(child);
    return child;
  }
  /// A child that this module owns, by a name below its own. args: of M's constructor, after the path.
  template <class M, class... Args>
  M& make_child(const std::string& name, Args&&... args) {
    return own_child(std::make_unique<M>(path_of(name), std::forward<Args>(args)...));
  }
  template <class M>
  M& own_child(std::unique_ptr<M> child) {
    M& made = *child;
    keep_child(std::move(child));
    return made;
  }
  bool casts_forward_input(DType dtype) const { return owner_ && owner_->casts_forward_input(owner_unit_, dtype); }
  /// Casts a tensor that is handed on to others, where the unit's precision asks for it.
  Tensor output(const Tensor& y) const { return owner_ ? owner_->cast_output(owner_unit_, y) : y; }

  /// The module's own forward, which is being called: enter() within it has nothing to do.
  class Call {
   public:
    explicit Call(const Module& module)
        : scope_(module.entered()), was_called_(std::exchange(module.is_called_, true)), module_(module) {}
    ~Call() { module_.is_called_ = was_called_; }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    const ForwardScope scope_;
    bool was_called_;
    const Module& module_;
  };

 private:
  void note_child(Module& child);
  void keep_child(std::unique_ptr<Module> child);
  ForwardScope entered() const;
  void add_own_units(const ShardedRuntime& runtime, std::vector<int>& units) const;
  std::span<const int> units_to_open() const { return is_called_ ? std::span<const int>() : opened_; }

  std::string path_;
  std::vector<std::unique_ptr<Parameter>> parameters_, buffers_;
  std::vector<Module*> children_;
  std::vector<std::unique_ptr<Module>> owned_;
  ShardedRuntime* owner_ = nullptr;
  int owner_unit_ = 0;
  bool is_unit_ = false;
  std::vector<int> opened_;
  std::optional<UnitPolicy> own_policy_;
  mutable bool is_called_ = false;
};

/// UsageError: the module is called as `called`, which it is derived from.
[[noreturn]] void refuse_subclass(const Module& module, const std::type_info& called);
/// Throws the error of a module's forward, which says where unless a module below it has said so.
[[noreturn]] void throw_within(const Module& module, const UsageError& error);

/// A module that is called: `y = layer(x)` runs Derived::forward, of any arguments, while the parameters of its unit
/// are unsharded.
///
///     struct Head : zs::Layer<Head> {
///       explicit Head(std::string path) : Layer(std::move(path)) {}
///       zs::Parameter& weight = add_parameter("weight", {10, 32}, {.normal_std = 0.1f}, true);
///       zs::Tensor forward(const zs::Tensor& x) { return zs::linear(x, weight, nullptr); }
///     };
///
/// A subclass of a Layer is one itself, over that: `struct Scaled : zs::Layer<Scaled, Head>`, whose constructor passes
/// on Head's arguments. Called as a Head it would run Head's forward: a UsageError, unless serves_subclasses().
template <class Derived, class Base = Module>
class Layer : public Base {
 public:
  template <class... Args>
  auto operator()(Args&&... args) {
    return call(std::forward<Args>(args)...);
  }
  // Calls with an argument in braces, whose type is that of forward's parameter: `layer(x, {})`.
  template <class D = Derived>
  auto operator()(ForwardArgument<D, 0> a, ForwardArgument<D, 1> b) {
    return call(std::forward<ForwardArgument<D, 0>>(a), std::forward<ForwardArgument<D, 1>>(b));
  }
  template <class D = Derived>
  auto operator()(ForwardArgument<D, 0> a, ForwardArgument<D, 1> b, ForwardArgument<D, 2> c) {
    return call(std::forward<ForwardArgument<D, 0>>(a), std::forward<ForwardArgument<D, 1>>(b),
                std::forward<ForwardArgument<D, 2>>(c));
  }

 protected:
  Layer() requires(!std::is_default_constructible_v<Base>) : Base(std::string()) {}
  Layer() requires(std::is_default_constructible_v<Base>) {}
  explicit Layer(std::string path) : Base(std::move(path)) {}
  template <class First, class... Rest>
  requires(sizeof...(Rest) > 0 || !std::is_convertible_v<First, std::string>) explicit Layer(First&& first,
                                                                                             Rest&&... rest)
      : Base(std::forward<First>(first), std::forward<Rest>(rest)...) {}

 private:
  template <class... Args>
  auto call(Args&&... args) {
    if (typeid(*this) != typeid(Derived) && !this->serves_subclasses()) [[unlikely]]
      refuse_subclass(*this, typeid(Derived));
    const typename Base::Call call(*this);
    try {
      return static_cast<Derived&>(*this).forward(std::forward<Args>(args)...);
    } catch (const UsageError& error) {
      throw_within(*this, error);
    }
  }
};

/// Modules that become units.
enum class Units : std::uint8_t {
  block,  ///< every block is a unit; the root unit owns the rest
  model,  ///< one unit owns everything
};

/// Predicate that is true if a parameter stays out of every unit.
using IsIgnored = std::function<bool(const Parameter&)>;

/// Policy of the unit that this module becomes. A function of the module alone: it may be asked twice.
using ChoosePolicy = std::function<UnitPolicy(const Module& unit)>;

/// Makes `root` and, by `units`, its blocks units of the runtime. UsageError where the runtime is not new, or two
/// parameters have one name. An ignored parameter is neither sharded nor initialised nor reduced: whoever ignores it
/// gives it an owner, a value and, if it is trained, a gradient of its own. Checkpoints hold its value. A module that
/// is registered in several places belongs to one unit: a block below the root before the root, and of several the
/// first.
///
/// Above 0, `unit_bytes`: blocks that follow each other below the same unit, and have the same policy, are one unit, so
/// that as many units as possible have so many bytes of gathered parameters each (merge_blocks); all of them are one
/// where together they have less. They should run in the order in which they are registered: from the second
/// micro-batch on, or by a plan's order, a unit is then gathered once for all of them.
void shard_module(Module& root, ShardedRuntime& runtime, Units units, const IsIgnored& is_ignored = {},
                  const ChoosePolicy& policy = {}, std::int64_t unit_bytes = 0);

/// Adds the parameters that ShardOptions::frozen_format is for, where they are frozen: those of two dims and more of
/// blocks, and of what is below them.
void add_matrices_of_blocks(const Module& module, std::set<const Parameter*>& matrices, bool is_in_block = false);

/// Predicate that is true if a module below the root is a unit of its own.
using IsUnit = std::function<bool(const Module&)>;
/// Makes these modules units of the runtime, one below another too, otherwise as above.
void shard_module(Module& root, ShardedRuntime& runtime, const IsUnit& is_unit, const IsIgnored& is_ignored = {},
                  const ChoosePolicy& policy = {}, std::int64_t unit_bytes = 0);

}  // namespace zs
