#include "model/train/session/whole_parameters.h"

#include <algorithm>
#include <vector>

#include "runtime/tensor/host_view.h"
#include "runtime/tensor/tensor.h"

namespace zs {
namespace {

/// The whole of a parameter's parts, which lie one after the other; empty where that is the whole.
std::vector<float> in_order(const Parameter& parameter, const float* parts_after_each_other) {
  const TensorParts parts(whole_shape(parameter), parameter.part());
  if (parts.left(0) == parts.numel()) return {};
  std::vector<float> whole(static_cast<std::size_t>(parts.numel() * parameter.part().count));
  for (int part = 0; part < parameter.part().count; ++part)
    for (std::int64_t i = 0; i < parts.numel(); i += parts.left(i))
      std::copy_n(parts_after_each_other + part * parts.numel() + i, parts.left(i),
                  whole.begin() + parts.in_whole(part, i));
  return whole;
}

}  // namespace

void read_whole(Executor& executor, int unit, const Executor::UsePiece& use) {
  const Placement& placement = *executor.units().at(static_cast<std::size_t>(unit)).placement;
  if (!placement.is_partitioned()) return executor.read_pieces(unit, use);
  Context& context = executor.context();
  Communicator& ranks = executor.groups().along(placement.options.partition.axis);
  const bool has_values = context.device().kind() != DeviceKind::meta;
  executor.read_full(unit, [&](const Parameter& parameter, const float* values) {
    const std::int64_t count = whole_shape(parameter).numel();
    if (parameter.part().is_whole()) return use(parameter, {0, count, values});
    std::vector<float> own(static_cast<std::size_t>(parameter.numel()));
    if (has_values) std::copy_n(values, own.size(), own.begin());
    const Tensor part = Tensor::from_host(context, parameter.shape(), std::move(own));
    const Tensor all = Tensor::empty(context, whole_shape(parameter), DType::f32);
    ranks.all_gather(context.stream(), parameter.name(), part.buffer(), all.buffer());
    const HostView here(context, context.stream(), all.buffer());
    const std::vector<float> ordered = has_values ? in_order(parameter, here.as<float>()) : std::vector<float>();
    use(parameter, {0, count, ordered.empty() ? here.as<float>() : ordered.data()});
  });
}

}  // namespace zs
