#include "model/nn/module_parameters.h"

#include <set>

#include "runtime/base/usage_error.h"

namespace zs {
namespace {

void visit_new(const Module& module, const std::function<void(Parameter&)>& visit, std::set<const Parameter*>& seen) {
  for (const auto& parameter : module.own_parameters())
    if (seen.insert(parameter.get()).second) visit(*parameter);
  for (const Module* child : module.children()) visit_new(*child, visit, seen);
}

}  // namespace

void for_each_parameter(const Module& module, const std::function<void(Parameter& parameter)>& visit) {
  if (!visit) throw UsageError("for_each_parameter() without a function", "give one");
  std::set<const Parameter*> seen;
  visit_new(module, visit, seen);
}

std::int64_t parameter_count(const Module& module, bool is_of_trained) {
  std::int64_t count = 0;
  for_each_parameter(module, [&](const Parameter& parameter) {
    if (!is_of_trained || parameter.is_trainable()) count += parameter.numel();
  });
  return count;
}

void set_trainable(const Module& module, bool is_trainable) {
  for_each_parameter(module, [&](Parameter& parameter) { parameter.set_trainable(is_trainable); });
}

}  // namespace zs
