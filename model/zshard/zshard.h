#pragma once

/// \file zshard/zshard.h
/// Everything that a program of your own needs: `#include <zshard/zshard.h>`. These are its parts; what they include
/// from `zshard/detail/` may change:
/// - run.h: a program's main function
/// - tensor.h, ops.h, op.h: tensors, ops, and ops of your own
/// - module.h, nn.h: modules and parameters, layers
/// - fully_shard.h, runtime.h: sharding a model, and scheduling, reading or writing its parameters by hand
/// - optimizer.h: optimizers, clipping, learning rates
/// - data.h: samples of text, of token ids, and of tensors in files
/// - checkpoint.h, weights.h: checkpoints; weights in safetensors files
/// - device.h, world.h: streams and memory, ranks and what they exchange
/// - error.h, version.h: errors and exit codes, the version

#include "model/zshard/checkpoint.h"
#include "model/zshard/data.h"
#include "model/zshard/device.h"
#include "model/zshard/error.h"
#include "model/zshard/fully_shard.h"
#include "model/zshard/module.h"
#include "model/zshard/nn.h"
#include "model/zshard/op.h"
#include "model/zshard/ops.h"
#include "model/zshard/optimizer.h"
#include "model/zshard/run.h"
#include "model/zshard/runtime.h"
#include "model/zshard/tensor.h"
#include "model/zshard/version.h"
#include "model/zshard/weights.h"
#include "model/zshard/world.h"
