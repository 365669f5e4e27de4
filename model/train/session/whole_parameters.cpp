#include "model/train/session/whole_parameters.h"

#include <algorithm>
#include <vector>

#include "runtime/tensor/host_view.h"
#include "runtime/tensor/tensor.h"

namespace zs {

void read_whole(Executor& executor, int unit, const Executor::UseParameter& use) {
  const Placement& placement = *executor.units().at(static_cast<std::size_t>(unit)).placement;
  if (!placement.is_partitioned()) return executor.read_full(unit, use);
  Context& context = executor.context();
  Communicator& ranks = executor.groups().along(placement.options.partition.axis);
  const bool has_values = context.device().kind() != DeviceKind::meta;
  executor.read_full(unit, [&](const Parameter& parameter, const float* values) {
    if (parameter.part().is_whole()) return use(parameter, values);
    ZS_CHECK(parameter.part().dim == 0, "{} is cut on dim {}", parameter.name(), parameter.part().dim);
    std::vector<float> own(static_cast<std::size_t>(parameter.numel()));
    if (has_values) std::copy_n(values, own.size(), own.begin());
    const Tensor part = Tensor::from_host(context, parameter.shape(), std::move(own));
    const Tensor whole = Tensor::empty(context, whole_shape(parameter), DType::f32);
    ranks.all_gather(context.stream(), parameter.name(), part.buffer(), whole.buffer());
    const HostView here(context, context.stream(), whole.buffer());
    use(parameter, here.as<float>());
  });
}

}  // namespace zs
