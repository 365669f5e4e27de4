#pragma once

/// \file zshard/optimizer.h
/// Optimizers over shards, clipping, learning rates. A step never waits for the device; one whose gradients are not
/// finite leaves the weights as they are. Learning rates are per step, decay is decoupled. Your own optimizer derives
/// from zs::Optimizer.

#include "runtime/shard/adamw.h"
#include "runtime/shard/adamw8bit.h"
#include "runtime/shard/grad_norm.h"
#include "runtime/shard/lion.h"
#include "runtime/shard/lost_updates.h"
#include "runtime/shard/lr_schedule.h"
#include "runtime/shard/muon.h"
#include "runtime/shard/optimizer.h"
#include "runtime/shard/sgd.h"
