#pragma once

/// \file zshard/ops.h
/// Ops with gradients, in f32 and bf16, on the CPU and on GPUs. Each checks its arguments when it is called, enqueues
/// its work on the context's stream, and records its backward unless recording is off. What does not fit is a
/// zs::UsageError that names op, argument and remedy.

#include "runtime/tensor/arithmetic.h"
#include "runtime/tensor/convolution.h"
#include "runtime/tensor/documents.h"
#include "runtime/tensor/dot_product_attention.h"
#include "runtime/tensor/einsum.h"
#include "runtime/tensor/experts.h"
#include "runtime/tensor/integers.h"
#include "runtime/tensor/layout.h"
#include "runtime/tensor/losses.h"
#include "runtime/tensor/ops.h"
#include "runtime/tensor/ordering.h"
#include "runtime/tensor/pointwise.h"
#include "runtime/tensor/recompute.h"
#include "runtime/tensor/reduction.h"
#include "runtime/tensor/scatter.h"
#include "runtime/tensor/statistics.h"
#include "runtime/tensor/values.h"
