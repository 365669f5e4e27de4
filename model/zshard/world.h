#pragma once

/// \file zshard/world.h
/// The ranks of a job, their communicators and meshes. zs::run makes the zs::World; threads of one process can be one
/// too (zs::run_local_world). Every rank makes the calls of a communicator in the same order: ranks that do not are
/// stopped before data mixes.

#include "comm/communicator.h"
#include "comm/gpu/gpu_world.h"
#include "comm/mesh.h"
#include "comm/world.h"
