#include "model/nn/module.h"

#include <cxxabi.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>
#include <span>
#include <string_view>

#include "model/nn/block_runs.h"
#include "runtime/base/name_pattern.h"
#include "runtime/base/usage_error.h"

namespace zs {
namespace {

/// Makes a module and the blocks below it units. A module may be registered in several places.
class UnitMaker {
 public:
  UnitMaker(Module& root, ShardedRuntime& runtime, const IsUnit& is_unit, const IsIgnored& is_ignored,
            const ChoosePolicy& policy, std::int64_t unit_bytes)
      : runtime_(runtime), is_unit_(is_unit), is_ignored_(is_ignored), policy_(policy), unit_bytes_(unit_bytes) {
    add_matrices_of_blocks(root, matrices_);
  }

  /// One unit of all `modules`.
  void add(std::span<Module* const> modules, std::string name) {
    std::vector<Parameter*> parameters;
    std::vector<Module*> blocks;
    for (Module* module : modules) collect(*module, is_unit_, parameters, blocks);
    leave_to_others(parameters, blocks);
    UnitPolicy policy = policy_of(*modules.front());
    std::vector<Parameter*> frozen = split_frozen(parameters, policy);
    const std::vector<Parameter*> encoded = split_encoded(policy.is_frozen ? parameters : frozen);
    const bool is_split = !frozen.empty() || !encoded.empty();
    const auto add_unit = [&](const std::string& of, const std::vector<Parameter*>& own) {
      UnitPolicy part = policy;
      if (is_split) part.partition = cuts_of(part.partition, own);
      return runtime_.add_unit(of, own, part);
    };
    std::vector<int> units = {add_unit(name, parameters)};
    policy.is_frozen = true;
    if (!frozen.empty()) units.push_back(add_unit(name + ".frozen", frozen));
    policy.frozen_format = runtime_.options().frozen_format;
    policy.reshard_after_forward.reset();  // that of the others
    if (!encoded.empty()) units.push_back(add_unit(name + ".quantized", encoded));
    for (Module* module : modules) {
      module->attach(&runtime_, units.front());
      module->open(units);
      take_in(*module, units.front());
    }
    std::span<Module* const> rest = blocks;
    for (const std::size_t count : runs_of(blocks)) {
      add_blocks(rest.first(count));
      rest = rest.subspan(count);
    }
  }

 private:
  /// Takes the frozen parameters of a unit of both out of it, where they are to have one of their own. A unit that is
  /// all frozen stays one.
  std::vector<Parameter*> split_frozen(std::vector<Parameter*>& parameters, UnitPolicy& policy) const {
    if (!runtime_.options().splits_frozen || policy.is_frozen) return {};
    const auto trained = std::stable_partition(parameters.begin(), parameters.end(),
                                               [](const Parameter* parameter) { return parameter->is_trainable(); });
    policy.is_frozen = !parameters.empty() && trained == parameters.begin();
    if (policy.is_frozen) return {};
    std::vector<Parameter*> frozen(trained, parameters.end());
    parameters.erase(trained, parameters.end());
    return frozen;
  }

  /// The cut of a unit as that of some of its parameters: the patterns that name one of them.
  static Partition cuts_of(Partition partition, const std::vector<Parameter*>& parameters) {
    std::erase_if(partition.dims, [&](const auto& cut) {
      const NamePattern pattern(cut.first);
      return std::none_of(parameters.begin(), parameters.end(),
                          [&](const Parameter* parameter) { return pattern.matches(parameter->name()); });
    });
    return partition.dims.empty() ? Partition{} : partition;
  }

  /// Takes the matrices of blocks out of what is frozen of a unit, where they are to be held in a format.
  std::vector<Parameter*> split_encoded(std::vector<Parameter*>& frozen) const {
    if (runtime_.options().frozen_format == nullptr) return {};
    const auto matrices = std::stable_partition(
        frozen.begin(), frozen.end(), [&](const Parameter* parameter) { return !matrices_.contains(parameter); });
    std::vector<Parameter*> encoded(matrices, frozen.end());
    frozen.erase(matrices, frozen.end());
    return encoded;
  }

  /// Adds the blocks that are not units yet.
  void add_blocks(std::span<Module* const> blocks) {
    std::vector<Module*> fresh;
    for (Module* block : blocks) {
      if (made_.insert(block).second) fresh.push_back(block);
    }
    if (!fresh.empty()) add(fresh, name_of_blocks(fresh.front()->path(), fresh.back()->path()));
  }

  UnitPolicy policy_of(const Module& module) const { return policy_ ? policy_(module) : UnitPolicy{}; }

  /// Numbers of blocks that follow each other and are one unit.
  std::vector<std::size_t> runs_of(const std::vector<Module*>& blocks) const {
    if (unit_bytes_ == 0) return std::vector<std::size_t>(blocks.size(), 1);
    std::vector<std::size_t> runs;
    for (std::size_t begin = 0, end = 0; begin < blocks.size(); begin = end) {
      const UnitPolicy policy = policy_of(*blocks[begin]);
      std::vector<std::int64_t> bytes;
      for (; end < blocks.size() && policy_of(*blocks[end]) == policy; ++end)
        bytes.push_back(gathered_bytes(*blocks[end], policy));
      const auto counts = merge_blocks(bytes, unit_bytes_);
      runs.insert(runs.end(), counts.begin(), counts.end());
    }
    return runs;
  }

  /// Bytes of a block's parameters, without padding, which depends on the number of ranks.
  std::int64_t gathered_bytes(Module& block, const UnitPolicy& policy) const {
    std::vector<Parameter*> parameters;
    std::vector<Module*> inner;
    collect(block, is_unit_, parameters, inner);
    leave_to_others(parameters, inner);
    std::int64_t elements = 0;
    for (const Parameter* parameter : parameters) elements += parameter->numel();
    return elements * size_of(policy.precision.value_or(runtime_.options().precision).param);
  }

  /// Parameters of `module` and of its children that are not units themselves; those go to `blocks`.
  void collect(Module& module, const IsUnit& is_unit, std::vector<Parameter*>& parameters,
               std::vector<Module*>& blocks) const {
    for (const auto& parameter : module.own_parameters()) {
      if (!is_ignored_ || !is_ignored_(*parameter)) parameters.push_back(parameter.get());
    }
    for (Module* child : module.children()) {
      if (is_unit(*child)) {
        blocks.push_back(child);
      } else {
        collect(*child, is_unit, parameters, blocks);
      }
    }
  }

  /// Makes what is below `module`, and no unit of its own, a part of this one.
  void take_in(const Module& module, int unit) const {
    for (Module* child : module.children()) {
      if (is_unit_(*child)) continue;
      child->belong(&runtime_, unit);
      take_in(*child, unit);
    }
  }

  /// Leaves what is below a block to it, and of several blocks to the first; the rest stays, each parameter once.
  void leave_to_others(std::vector<Parameter*>& parameters, const std::vector<Module*>& blocks) const {
    std::vector<Parameter*> inner;
    std::vector<Module*> none;
    for (Module* block : blocks)
      collect(
          *block, [](const Module&) { return false; }, inner, none);
    std::set<Parameter*> known(inner.begin(), inner.end());
    std::erase_if(parameters, [&](Parameter* parameter) {
      return parameter->owner() != nullptr || !known.insert(parameter).second;
    });
  }

  ShardedRuntime& runtime_;
  const IsUnit& is_unit_;
  const IsIgnored& is_ignored_;
  const ChoosePolicy& policy_;
  std::int64_t unit_bytes_;
  std::set<Module*> made_;
  std::set<const Parameter*> matrices_;  // parameters that a format is for
};

/// Refuses a tree in which two parameters have one name, or one belongs to a unit already. A module may be registered
/// in several places.
class TreeCheck {
 public:
  explicit TreeCheck(const IsIgnored& is_ignored) : is_ignored_(is_ignored) {}

  /// Each once, in the order of their places.
  const std::vector<Parameter*>& ignored() const { return ignored_; }
  const std::vector<Parameter*>& buffers() const { return buffers_; }

  /// `place`: "the root", "child 2 of module blocks.0".
  void check(const Module& module, const std::string& place) {
    for (const auto& parameter : module.own_parameters()) check(*parameter, place);
    for (const auto& buffer : module.own_buffers())
      if (is_new(*buffer, place)) buffers_.push_back(buffer.get());
    for (std::size_t i = 0; i < module.children().size(); ++i) {
      const Module& child = *module.children()[i];
      const std::string name = module.path().empty() ? "the root" : fmt::format("module \"{}\"", module.path());
      check(child, fmt::format("module \"{}\", child {} of {}", child.path(), i, name));
    }
  }

 private:
  /// True if the parameter is met for the first time.
  bool is_new(const Parameter& parameter, const std::string& place) {
    const auto [known, is_new] = known_.insert({parameter.name(), {&parameter, place}});
    if (!is_new && known->second.first != &parameter) {
      throw UsageError(fmt::format("two parameters are called {}: one of {}, one of {}", parameter.name(),
                                   known->second.second, place),
                       "give the modules different paths");
    }
    return is_new;
  }

  void check(Parameter& parameter, const std::string& place) {
    const bool is_first = is_new(parameter, place);
    if (is_ignored_ && is_ignored_(parameter)) {
      if (is_first) ignored_.push_back(&parameter);
      return;
    }
    if (parameter.owner() == nullptr) return;
    throw UsageError(fmt::format("shard_module: parameter {} already belongs to a unit", parameter.name()),
                     "shard a model once, and in one runtime at a time");
  }

  const IsIgnored& is_ignored_;
  std::map<std::string_view, std::pair<const Parameter*, std::string>> known_;
  std::vector<Parameter*> ignored_, buffers_;
};

std::string name_of_type(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(abi::__cxa_demangle(type.name(), nullptr, nullptr, &status),
                                                         &std::free);
  const std::string_view whole = status == 0 ? name.get() : type.name();
  const std::size_t scope = whole.rfind("::");
  return std::string(scope == std::string_view::npos ? whole : whole.substr(scope + 2));
}

void add_once(std::vector<int>& units, int unit) {
  if (std::find(units.begin(), units.end(), unit) == units.end()) units.push_back(unit);
}

}  // namespace

Module::Module(std::string path) : path_(std::move(path)) {}

Module::~Module() {
  // A model that still has them: they stay, and it knows them by having no owner any more
  for (auto& parameter : parameters_) {
    if (owner_ == nullptr || static_cast<const void*>(parameter->owner()) != static_cast<const void*>(owner_)) continue;
    parameter->set_owner(nullptr, parameter->part());
    static_cast<void>(parameter.release());
  }
  for (auto& buffer : buffers_) {
    if (!buffer->is_bound()) continue;
    buffer->unbind();
    static_cast<void>(buffer.release());
  }
}

std::string Module::path_of(const std::string& name) const {
  if (name.empty()) throw UsageError(fmt::format("a part without a name of module \"{}\"", path_), "name it");
  return path_.empty() ? name : path_ + "." + name;
}

Parameter& Module::add_parameter(const std::string& name, Shape shape, Init init, bool has_decay) {
  if (shape.numel() == 0)
    throw UsageError(fmt::format("parameter {} of shape {} has no elements", path_of(name), shape.str()),
                     "give its module sizes above 0");
  for (const float number : {init.normal_std, init.constant, init.uniform_bound})
    if (!std::isfinite(number))
      throw UsageError(fmt::format("the Init of parameter {} has {}", path_of(name), number), "give finite numbers");
  parameters_.push_back(std::make_unique<Parameter>(path_of(name), shape, init, has_decay));
  return *parameters_.back();
}

Parameter& Module::add_buffer(const std::string& name, Shape shape, float constant) {
  buffers_.push_back(std::make_unique<Parameter>(path_of(name), shape, Init{.constant = constant}, false));
  buffers_.back()->set_trainable(false);
  return *buffers_.back();
}

void Module::note_child(Module& child) {
  if (&child == this)
    throw UsageError(fmt::format("module \"{}\" is registered as its own child", path_), "register what is below it");
  children_.push_back(&child);
}

void Module::keep_child(std::unique_ptr<Module> child) {
  note_child(*child);
  owned_.push_back(std::move(child));
}

void Module::attach(ShardedRuntime* runtime, int unit) {
  is_unit_ = runtime != nullptr;
  opened_.assign(is_unit_ ? 1 : 0, unit);
  belong(runtime, unit);
}

void Module::open(std::vector<int> units) { opened_ = std::move(units); }

void Module::detach() {
  attach(nullptr, 0);
  for (Module* child : children_) child->detach();
}

void throw_within(const Module& module, const UsageError& error) {
  if (module.path().empty() || !error.where().empty()) throw;
  throw UsageError(error.what_happened(), error.what_to_do(), "in " + module.path());
}

void refuse_subclass(const Module& module, const std::type_info& called) {
  const std::string own = name_of_type(typeid(module)), base = name_of_type(called);
  throw UsageError(
      fmt::format("module \"{}\", a {}, is called as the {} that it is derived from, whose forward would run",
                  module.path(), own, base),
      fmt::format("derive it from Layer<{0}, {1}>, and call it as a {0}; where it has no forward of its own, override "
                  "serves_subclasses() in {1}",
                  own, base));
}

ForwardScope Module::entered() const {
  if (own_policy_ && owner_ == nullptr) {
    throw UsageError(
        fmt::format("fully_shard was called for module \"{}\", but not for the model that contains it", path_),
        "call it last for the model, which is what owns the context and the world: fully_shard(model, context, world)");
  }
  return enter();
}

std::vector<int> Module::units_in(const ShardedRuntime& runtime, bool recurse) const {
  if (owner_ != &runtime)
    throw UsageError(fmt::format("module \"{}\" is not sharded by this runtime", path_), "call shard_module() first");
  std::vector<int> units;
  add_own_units(runtime, units);
  const bool goes_below = recurse || units.empty();
  for (const Module* child : children_) {
    if (!goes_below) break;
    for (const int unit : child->units_in(runtime, recurse)) add_once(units, unit);
  }
  return units;
}

void Module::add_own_units(const ShardedRuntime& runtime, std::vector<int>& units) const {
  if (is_unit_) add_once(units, owner_unit_);
  for (const auto& parameter : parameters_)
    if (const std::optional<int> unit = runtime.unit_of(*parameter)) add_once(units, *unit);
  for (const Module* child : children_)
    if (!child->is_unit_) child->add_own_units(runtime, units);
}

void add_matrices_of_blocks(const Module& module, std::set<const Parameter*>& matrices, bool is_in_block) {
  is_in_block = is_in_block || module.is_block();
  for (const auto& parameter : module.own_parameters())
    if (is_in_block && parameter->shape().rank() >= 2) matrices.insert(parameter.get());
  for (const Module* child : module.children()) add_matrices_of_blocks(*child, matrices, is_in_block);
}

void shard_module(Module& root, ShardedRuntime& runtime, Units units, const IsIgnored& is_ignored,
                  const ChoosePolicy& policy, std::int64_t unit_bytes) {
  shard_module(
      root, runtime, [units](const Module& module) { return units == Units::block && module.is_block(); }, is_ignored,
      policy, unit_bytes);
}

void shard_module(Module& root, ShardedRuntime& runtime, const IsUnit& is_unit, const IsIgnored& is_ignored,
                  const ChoosePolicy& policy, std::int64_t unit_bytes) {
  if (unit_bytes < 0) throw UsageError(fmt::format("shard_module: units of {} bytes", unit_bytes), "pass 0 or more");
  TreeCheck tree(is_ignored);
  tree.check(root, "the root");
  if (!runtime.executor().units().empty())
    throw UsageError("shard_module was called for a runtime that has units already", "call it once, for a new runtime");
  for (Parameter* parameter : tree.ignored()) runtime.executor().add_ignored(*parameter);
  for (Parameter* buffer : tree.buffers()) runtime.add_buffer(*buffer);
  Module* const modules[] = {&root};
  UnitMaker(root, runtime, is_unit, is_ignored, policy, unit_bytes).add(modules, "root");
}

void Module::set_own_policy(const UnitPolicy& policy) { own_policy_ = policy; }

}  // namespace zs
