#include "runtime/tensor/op_arguments.h"

#include "runtime/base/usage_error.h"
#include "runtime/tensor/host_view.h"

namespace zs {
namespace {

std::string describe(const Parameter& parameter) {
  return fmt::format("parameter {}, {} {}", parameter.name(), name_of(parameter.value().dtype),
                     parameter.shape().str());
}

std::string describe(const Tensor& x) { return x ? x.describe() : "an empty tensor"; }

}  // namespace

void require_float(const char* op, const char* name, const Tensor& x) {
  if (x && (x.dtype() == DType::f32 || x.dtype() == DType::bf16)) return;
  throw UsageError(fmt::format("op {}: {} is {}, expected f32 or bf16", op, name, describe(x)));
}

void require_ids(const char* op, const char* name, const Tensor& ids) {
  if (ids && ids.dtype() == DType::i32) return;
  throw UsageError(fmt::format("op {}: {} are {}, expected i32", op, name, describe(ids)),
                   "make them by Tensor::from_host from std::vector<std::int32_t>");
}

void require_below(const char* op, const char* name, const Tensor& x, std::int64_t limit) {
  launch_on_host(x.context(), {"check_indices", {x.buffer()}, {}},
                 [op, name, limit](ExecContext&, const std::vector<Buffer>& reads) {
                   const auto* const indices = reads[0].as<std::int32_t>();
                   for (std::int64_t i = 0; i < reads[0].elems; ++i)
                     if (indices[i] < 0 || indices[i] >= limit)
                       throw UsageError(
                           fmt::format("op {}: {} {} is {}, expected [0, {})", op, name, i, indices[i], limit),
                           "give numbers of rows or classes that there are");
                 });
}

void require_width(const char* op, const Tensor& x, const Parameter& parameter, std::int64_t width) {
  if (x && x.shape().rank() > 0 && x.shape()[-1] == width) return;
  throw UsageError(fmt::format("op {}: x is {}, and parameter {} {} takes rows of {}", op, describe(x),
                               parameter.name(), parameter.shape().str(), width));
}

void require_dtype_of(const char* op, const Tensor& x, const Parameter& parameter) {
  require_float(op, "x", x);
  const DType dtype = parameter.value().dtype;
  if (x.dtype() == dtype) return;
  throw UsageError(fmt::format("op {}: x is {}, and {}", op, describe(x), describe(parameter)),
                   fmt::format("pass x through Module::input, or through cast(x, DType::{})", name_of(dtype)));
}

void require_alike(const char* op, const Parameter& a, const Parameter& b) {
  if (a.value().dtype == b.value().dtype) return;
  throw UsageError(fmt::format("op {}: {}, and {}", op, describe(a), describe(b)), "give both units one precision");
}

void require_alike(const std::string& op, const Tensor& a, const Tensor& b) {
  if (!a || !b) throw UsageError(fmt::format("{} of {} and {}", op, describe(a), describe(b)));
  if (a.shape() != b.shape())
    throw UsageError(fmt::format("{} of {} and {}", op, describe(a), describe(b)), "reshape one of them");
  if (a.dtype() == b.dtype()) return;
  throw UsageError(fmt::format("{} of {} and {}", op, describe(a), describe(b)),
                   "cast one of them: cast(x, DType::f32)");
}

}  // namespace zs
