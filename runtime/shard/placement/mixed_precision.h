#pragma once

#include <optional>

#include "comm/comm_dtype.h"
#include "runtime/base/dtype.h"
#include "runtime/shard/placement/gather_format.h"

namespace zs {

/// Dtypes in which a unit computes, and of what it takes and gives. f32 or bf16 everywhere; master weights, reduced
/// gradients and the optimizer's state are f32 in any case. Gradients that are accumulated whole over several
/// micro-batches are so in f32, and rounded once.
struct MixedPrecisionPolicy {
  DType param = DType::f32;   ///< runtime parameters and activations
  DType reduce = DType::f32;  ///< dtype that a reduction carries; bf16 only where param is
  /// Dtype that the unit hands on (Module::output); none: as it is computed
  std::optional<DType> output = {};
  bool cast_forward_inputs = true;                 ///< cast to param what comes into the unit (Module::input)
  const GatherFormat* gather_format = nullptr;     ///< format of what is gathered; null: as it is
  CommDType reduce_comm_dtype = CommDType::exact;  ///< format in which reduce-scattered gradients travel
  /// The masters' bf16 copy: up or down at random (KernelTable::stochastic_cast), else to nearest
  bool rounds_stochastically = false;
  bool is_full_in_evaluation = false;  ///< an evaluation gathers the f32 master weights, and hands on f32

  bool operator==(const MixedPrecisionPolicy&) const = default;
};

}  // namespace zs
