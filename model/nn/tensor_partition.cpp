#include "model/nn/tensor_partition.h"

#include "model/nn/attention.h"
#include "model/nn/mlp.h"
#include "model/nn/transformer.h"
#include "runtime/base/usage_error.h"

namespace zs {
namespace {

/// Adds the dims that products at a module, and below it, are cut on. `prefix`: of its parameters' names, where the
/// unit's path is "*".
void add_cuts(const Module& module, const std::string& prefix, const IsUnit& is_unit, Partition& partition) {
  const auto cut = [&](const char* parameter, int dim) { partition.dims.emplace_back(prefix + parameter, dim); };
  if (const auto* const attention = dynamic_cast<const Attention*>(&module)) {
    cut("qkv.*", 0);
    cut("out.weight", 1);
    if (attention->has_norm_of_all_heads()) cut("?_norm.weight", 0);
    if (attention->has_sinks()) cut("sinks", 0);
  }
  if (const auto* const mlp = dynamic_cast<const Mlp*>(&module)) {
    cut(mlp->is_gated() ? "gate_up.*" : "up.*", 0);
    cut("down.weight", 1);
  }
  if (const auto* const transformer = dynamic_cast<const Transformer*>(&module)) {
    cut("token_embedding.weight", 0);
    if (!transformer->is_tied()) cut("head.weight", 0);
  }
  for (const Module* child : module.children()) {
    if (is_unit(*child)) continue;
    const std::string own = child->path().substr(module.path().empty() ? 0 : module.path().size() + 1);
    add_cuts(*child, prefix + own + ".", is_unit, partition);
  }
}

}  // namespace

Communicator* find_part_ranks(const Module& module, const Parameter& parameter) {
  if (parameter.part().is_whole()) return nullptr;
  const Executor& executor = module.owner()->executor();
  const auto unit = static_cast<std::size_t>(module.owner()->unit_of(parameter).value());
  const std::string& axis = executor.units().at(unit).placement->options.partition.axis;
  if (executor.groups().grid().reads_data(axis))
    throw UsageError(fmt::format("\"{}\" is cut over axis {}, whose ranks read different data", module.path(), axis),
                     "cut it over an axis of reads_data = false");
  return &executor.groups().along(axis);
}

Partition tensor_partition(const Module& unit, const IsUnit& is_unit, const std::string& axis) {
  Partition partition{.axis = axis};
  add_cuts(unit, unit.path().empty() ? "" : "*.", is_unit, partition);
  return partition.dims.empty() ? Partition{} : partition;
}

}  // namespace zs
