#pragma once

#include <string>

#include "runtime/tensor/parameter.h"
#include "runtime/tensor/tensor.h"

/// Checks of the arguments of the library's ops. A violation is a UsageError that names the op, the argument and what
/// to do.
namespace zs {

/// x is f32 or bf16.
void require_float(const char* op, const char* name, const Tensor& x);
/// ids are i32.
void require_ids(const char* op, const char* name, const Tensor& ids);
/// Enqueues a check of i32 x, for ops whose kernels do not see all of it: a UsageError of the compute stream names the
/// first element outside [0, limit). With a GPU the host waits.
void require_below(const char* op, const char* name, const Tensor& x, std::int64_t limit);
/// The last dim of x has `width` elements, which is what the parameter takes.
void require_width(const char* op, const Tensor& x, const Parameter& parameter, std::int64_t width);
/// x, f32 or bf16, has the dtype of the parameter that it meets.
void require_dtype_of(const char* op, const Tensor& x, const Parameter& parameter);
/// Two parameters of one op have one dtype.
void require_alike(const char* op, const Parameter& a, const Parameter& b);
/// One shape and dtype.
void require_alike(const std::string& op, const Tensor& a, const Tensor& b);

}  // namespace zs
