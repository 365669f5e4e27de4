#include "model/module.h"

namespace zs {
namespace {

/// Parameters of `module` and of its children that are not units themselves; those go to `blocks`.
void collect(Module& module, Units units, const IsIgnored& is_ignored, std::vector<Parameter*>& parameters, std::vector<Module*>& blocks) {
  for (const auto& parameter : module.own_parameters()) {
    if (!is_ignored || !is_ignored(*parameter)) parameters.push_back(parameter.get());
  }
  for (Module* child : module.children()) {
    if (units == Units::block && child->is_block()) {
      blocks.push_back(child);
    } else {
      collect(*child, units, is_ignored, parameters, blocks);
    }
  }
}

void add_units(Module& module, std::string name, ShardedRuntime& runtime, Units units, const IsIgnored& is_ignored) {
  std::vector<Parameter*> parameters;
  std::vector<Module*> blocks;
  collect(module, units, is_ignored, parameters, blocks);
  module.attach(&runtime, runtime.add_unit(std::move(name), parameters));
  for (Module* block : blocks) add_units(*block, block->path(), runtime, units, is_ignored);
}

}  // namespace

void shard_module(Module& root, ShardedRuntime& runtime, Units units, const IsIgnored& is_ignored) {
  add_units(root, "root", runtime, units, is_ignored);
}

}  // namespace zs
