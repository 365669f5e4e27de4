#pragma once

/// \file zshard/tensor.h
/// zs::Tensor, a handle of dense elements on a device, the zs::Context that it is made in, shapes and dtypes; a
/// zs::HostView shows the host a buffer. Handles share elements; memory goes back in the order of the stream. One host
/// thread uses a context and what is made in it.

#include "runtime/base/dtype.h"
#include "runtime/base/shape.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/context.h"
#include "runtime/tensor/host_view.h"
#include "runtime/tensor/tensor.h"
