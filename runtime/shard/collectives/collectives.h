#pragma once

#include <string>

#include "comm/communicator.h"
#include "runtime/tensor/tensor.h"

namespace zs {

// Functions of f32 tensors over the ranks of `ranks`, whose backward communicates too. All are collective, forward and
// backward: every rank calls them in the same order with the same shapes, and x wants a gradient on all ranks or on
// none. They run on the compute stream; on return: enqueued, not done. `ranks` outlives the recorded graph. UsageError
// for an empty tensor or another dtype.
//
// Two meanings of a loss differ in their gradients. Along an axis that reads different data each rank has a loss of its
// own, and what is differentiated is their sum (mean_over_ranks). Along an axis that cuts parameters the ranks compute
// one loss together, each of them all of what follows (the others).

/// Mean over the ranks, each of which has a loss of its own; the same bits on each. Gradient: the mean of what came
/// back to the ranks.
Tensor mean_over_ranks(Communicator& ranks, const Tensor& x);

/// Sum of the parts of a result that ranks have, such as the products of a matrix that is cut over its columns; the
/// same bits on each. The ranks compute one loss: the gradient of each part is that of the sum, without communication.
Tensor sum_of_parts(Communicator& ranks, const Tensor& x);

/// x, which the ranks have alike, as the input of parts that differ, such as of a matrix that is cut over its rows: the
/// mirror of sum_of_parts. Nothing moves in forward; the gradient is the sum of what came back from the parts.
Tensor input_of_parts(Communicator& ranks, const Tensor& x);

/// The ranks' tensors, all of x's shape, one after the other along `dim`, in the order of ranks. The ranks compute one
/// loss: the gradient of x is this rank's part of what came back, without communication.
Tensor concat_over_ranks(Communicator& ranks, const Tensor& x, int dim = 0);

/// concat_over_ranks of ranks that each have a loss of their own of what all have, as a contrastive loss over the
/// samples of all: the gradient of x is the sum, over the ranks, of what came back for this rank's part (PyTorch's
/// all_gather with autograd). Under fully_shard's division by the ranks, what is minimised is the mean of the ranks'
/// losses.
Tensor all_gather(Communicator& ranks, const Tensor& x, int dim = 0);

/// Checks that the ranks have x (i32 or f32) alike, as those have to that compute one loss together: an
/// Error(ranks_disagree) of the stream names `what` otherwise, alike on each of them. `axis`: what the ranks are
/// along. Collective; sends 16 bytes a rank. Enqueues; nothing on a GPU, whose memory the host does not read.
void check_alike(Communicator& ranks, const std::string& axis, const std::string& what, const Tensor& x);

}  // namespace zs
