#pragma once

#include "runtime/shard/execute/executor.h"

namespace zs {

/// Shape of the whole parameter, of which this rank may own a part.
inline Shape whole_shape(const Parameter& parameter) { return parameter.part().whole_of(parameter.shape()); }

/// Executor::read_pieces, of whole parameters: parts along an axis of the grid are gathered over it, one parameter
/// after the other, each one piece. Collective; blocks.
void read_whole(Executor& executor, int unit, const Executor::UsePiece& use);

}  // namespace zs
