#pragma once

/// \file zshard/module.h
/// What models are made of: zs::Layer, or zs::Module, names its parameters, buffers and children, and its forward is
/// written as if there were one device. Sharding is applied from outside (fully_shard.h).

#include "model/nn/module.h"
#include "model/nn/module_parameters.h"
#include "runtime/tensor/parameter.h"
