#include "model/module.h"

#include <set>

namespace zs {
namespace {

/// Makes a module and the blocks below it units. A module may be registered in several places.
class UnitMaker {
 public:
  UnitMaker(ShardedRuntime& runtime, Units units, const IsIgnored& is_ignored, const ChoosePolicy& policy)
      : runtime_(runtime), units_(units), is_ignored_(is_ignored), policy_(policy) {}

  void add(Module& module, std::string name) {
    std::vector<Parameter*> parameters;
    std::vector<Module*> blocks;
    collect(module, units_, parameters, blocks);
    leave_to_others(parameters, blocks);
    const int unit = runtime_.add_unit(std::move(name), parameters, policy_ ? policy_(module) : UnitPolicy{});
    module.attach(&runtime_, unit);
    take_in(module, unit);
    for (Module* block : blocks) {
      if (made_.insert(block).second) add(*block, block->path());
    }
  }

 private:
  /// Parameters of `module` and of its children that are not units themselves; those go to `blocks`.
  void collect(Module& module, Units units, std::vector<Parameter*>& parameters, std::vector<Module*>& blocks) const {
    for (const auto& parameter : module.own_parameters()) {
      if (!is_ignored_ || !is_ignored_(*parameter)) parameters.push_back(parameter.get());
    }
    for (Module* child : module.children()) {
      if (units == Units::block && child->is_block()) {
        blocks.push_back(child);
      } else {
        collect(*child, units, parameters, blocks);
      }
    }
  }

  /// What below `module` is no unit of its own is a part of this one.
  void take_in(const Module& module, int unit) const {
    for (Module* child : module.children()) {
      if (units_ == Units::block && child->is_block()) continue;
      child->belong(&runtime_, unit);
      take_in(*child, unit);
    }
  }

  /// What is below a block is the block's, and of several blocks the first one's; the rest stays, each parameter once.
  void leave_to_others(std::vector<Parameter*>& parameters, const std::vector<Module*>& blocks) const {
    std::vector<Parameter*> inner;
    std::vector<Module*> none;
    for (Module* block : blocks) collect(*block, Units::model, inner, none);
    std::set<Parameter*> known(inner.begin(), inner.end());
    std::erase_if(parameters, [&](Parameter* parameter) { return parameter->owner() != nullptr || !known.insert(parameter).second; });
  }

  ShardedRuntime& runtime_;
  Units units_;
  const IsIgnored& is_ignored_;
  const ChoosePolicy& policy_;
  std::set<Module*> made_;
};

}  // namespace

void shard_module(Module& root, ShardedRuntime& runtime, Units units, const IsIgnored& is_ignored, const ChoosePolicy& policy) {
  UnitMaker(runtime, units, is_ignored, policy).add(root, "root");
}

}  // namespace zs
