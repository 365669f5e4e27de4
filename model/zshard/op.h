#pragma once

/// \file zshard/op.h
/// Ops of your own: zs::elementwise for functions of single elements, zs::record_op and zs::record_outputs for any
/// others, hooks on gradients, and zs::backward. An op enqueues its work with the buffers that it reads and writes:
/// memory plan and order checks rely on that. With nvcc, zs::elementwise runs on GPUs too.

#include "runtime/tensor/autograd.h"
#include "runtime/tensor/elementwise.h"
#include "runtime/tensor/op_arguments.h"
