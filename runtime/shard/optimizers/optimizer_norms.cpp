// Norms of whole parameters, for updates that go by them.
#include <utility>

#include "runtime/shard/optimizers/optimizer.h"

namespace zs {

/// The direction of each update takes the gradient's place, and is measured there with the weights.
void Optimizer::take_norms(const std::vector<std::size_t>& units) {
  const Update direction = slice_direction();
  for (const std::size_t unit : units) {
    const Held held = held_of(unit, {});
    std::vector<Part> own = parts(unit, false, held);
    if (own.empty() || !direction) continue;
    OpInfo info{
        kind_ + "_direction:" + executor_.units()[unit].name, {held.master, held.grad, all_scalars()}, {held.grad}};
    for (const Buffer& state : held.states) {
      if (state.empty()) continue;
      info.reads.push_back(state);
      info.writes.push_back(state);
    }
    executor_.context().launch(std::move(info), [direction, own = std::move(own)](ExecContext& exec) {
      for (const Part& part : own) direction(exec, part.slice);
    });
  }
  norms_->measure([this](std::size_t unit, std::size_t parameter) { return is_updated(unit, parameter); });
}

}  // namespace zs
