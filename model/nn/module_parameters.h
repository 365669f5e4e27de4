#pragma once

#include <cstdint>
#include <functional>

#include "model/nn/module.h"

namespace zs {

/// visit(parameter) for each parameter of the module and of those below it, in the order of the model; once each.
void for_each_parameter(const Module& module, const std::function<void(Parameter& parameter)>& visit);
/// Elements of all its parameters, or of those that are trained.
std::int64_t parameter_count(const Module& module, bool is_of_trained = false);
/// Freezes the parameters of a module, or trains them again. Between micro-batches, alike on every rank.
void set_trainable(const Module& module, bool is_trainable);

}  // namespace zs
