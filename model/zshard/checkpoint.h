#pragma once

/// \file zshard/checkpoint.h
/// zs::save and zs::load: weights, optimizer state and buffers by name, loaded at any number of ranks, in any strategy.
/// Collective; between steps. A checkpoint appears whole or not at all. zs::state_by_name has the same in memory.

#include "runtime/shard/checkpoint/checkpoint.h"
#include "runtime/shard/checkpoint/checkpoint_save.h"
#include "runtime/shard/checkpoint/latest_checkpoint.h"
#include "runtime/shard/checkpoint/state_by_name.h"
