#pragma once

#include "runtime/device/stream.h"
#include "runtime/tensor/parameter.h"

namespace zs {

/// An op that adds to a gradient writes it, and reads it where something is there already.
inline OpInfo declare_gradient(OpInfo info, const Parameter::GradTarget& target) {
  info.writes.push_back(target.buffer);
  if (target.beta != 0) info.reads.push_back(target.buffer);
  return info;
}

}  // namespace zs
