#pragma once

/// \file zshard/optimizer.h
/// Optimizers over shards, clipping, learning rates. A step never waits for the device; one whose gradients are not
/// finite leaves the weights as they are. Learning rates are per step, decay is decoupled. Your own optimizer derives
/// from zs::Optimizer.

#include "runtime/shard/optimizers/adamw.h"
#include "runtime/shard/optimizers/adamw8bit.h"
#include "runtime/shard/optimizers/grad_norm.h"
#include "runtime/shard/optimizers/lion.h"
#include "runtime/shard/optimizers/lost_updates.h"
#include "runtime/shard/optimizers/lr_schedule.h"
#include "runtime/shard/optimizers/muon.h"
#include "runtime/shard/optimizers/optimizer.h"
#include "runtime/shard/optimizers/schedule_free.h"
#include "runtime/shard/optimizers/sgd.h"
