#pragma once

/// \file zshard/nn.h
/// Layers. Each names its parameters below its own path, and says shapes and sources of its formulas; casts, sharding
/// and recomputation are not its concern.

#include "model/nn/attention.h"
#include "model/nn/batch_norm.h"
#include "model/nn/conv.h"
#include "model/nn/cross_attention.h"
#include "model/nn/dropout.h"
#include "model/nn/embedding.h"
#include "model/nn/experts.h"
#include "model/nn/group_norm.h"
#include "model/nn/kv_cache.h"
#include "model/nn/linear.h"
#include "model/nn/mlp.h"
#include "model/nn/module_list.h"
#include "model/nn/norm.h"
#include "model/nn/recurrent.h"
#include "model/nn/transformer.h"
#include "model/nn/transformer_block.h"
