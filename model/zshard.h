#pragma once

// Everything a custom trainer needs: #include <zshard/zshard.h>, pkg-config zshard.

#include "comm/world.h"
#include "model/fully_shard.h"
#include "model/module.h"
#include "model/version.h"
#include "runtime/device/cpu_topology.h"
#include "runtime/device/device.h"
#include "runtime/shard/adamw.h"
#include "runtime/shard/checkpoint.h"
#include "runtime/shard/full_parameters.h"
#include "runtime/shard/lr_schedule.h"
#include "runtime/shard/sgd.h"
#include "runtime/shard/sharded_runtime.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/ops.h"
#include "runtime/tensor/recompute.h"
