// The average of the weights that an optimizer keeps if it is asked to.

#include "runtime/base/usage_error.h"
#include "runtime/shard/optimizers/optimizer.h"

namespace zs {

/// Updates the average by the rule of SGD: of a gradient -w, a decay of 1 and the learning rate 1 - average. What is
/// not trained, or not yet, is the weights. Behind correct_scalars().
void Optimizer::update_average() {
  Context& context = executor_.context();
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (executor_.units()[unit].is_frozen) continue;
    const Buffer master = executor_.units()[unit].master_buffer(), average = state(definition_.state.size(), unit);
    std::vector<UpdateRange> updates, copies;
    for (const Range& range : units_[unit].held) {
      const bool is_now = is_updated(unit, range.view);
      if (!is_now && counts_.was_updated(unit, range.view)) continue;
      UpdateRange part{average.slice(range.offset, range.count), master.slice(range.offset, range.count)};
      part.weight_decay = 1;
      if (is_now) part.scalars = average_scalars(units_[unit].slots[range.view]);
      (is_now ? updates : copies).push_back(part);
    }
    context.launch({"average:" + executor_.units()[unit].name, {master, average, every_scalars()}, {average}},
                   [&kernels = context.kernels(), updates, copies](ExecContext& exec) {
                     for (const UpdateRange& part : copies) kernels.copy(exec, part.master, part.grad);
                     kernels.update(exec, updates, SgdOptions{0, false});
                   });
  }
}

/// The gradient's shards, which nobody needs between steps, hold the one meanwhile; the masters themselves where what
/// takes their place follows from them and a state.
void Optimizer::swap_average() {
  if (!has_average()) throw UsageError(fmt::format("{} has no average", name_), "build it with one");
  model_.check("swap_average() of " + name_);
  executor_.step().check_between_steps("swap_average()", StepState::Weights::any);
  const UpdateCounts::Progress counted = counts_.read();
  bool has_begun = false;
  for (const auto& of_unit : counted)
    for (const UpdateCount& count : of_unit) has_begun = has_begun || count.updates > 0;
  if (!has_begun) return;
  executor_.wait_readers();
  Context& context = executor_.context();
  const std::optional<Evaluation>& evaluation = definition_.evaluation;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    const FlatParameter& flat = executor_.units()[unit];
    if (flat.is_frozen) continue;
    for (const Range& range : units_[unit].held) {
      if (counted[unit][range.view].updates == 0) continue;
      const auto part = [&](const Buffer& all) { return all.slice(range.offset, range.count); };
      const Buffer a = part(flat.master_buffer()),
                   b = part(state(evaluation ? evaluation->state : definition_.state.size(), unit)),
                   c = part(flat.held_grad_buffer());
      if (evaluation) {
        context.launch({"swap_evaluation", {a, b, c}, {a, c}},
                       [&kernels = context.kernels(), a, b, c, is_back = is_swapped_,
                        factor = evaluation->factor](ExecContext& exec) {
                         kernels.copy(exec, is_back ? a : c, is_back ? c : a);
                         if (is_back) return;
                         kernels.scale(exec, a, b, factor);
                         kernels.add(exec, a, a, c);
                       });
        continue;
      }
      context.launch({"swap_average", {a, b}, {a, b, c}}, [&kernels = context.kernels(), a, b, c](ExecContext& exec) {
        kernels.copy(exec, c, a);
        kernels.copy(exec, a, b);
        kernels.copy(exec, b, c);
      });
    }
  }
  is_swapped_ = !is_swapped_;
  executor_.step().set_swapped(is_swapped_ ? name_ : std::string());
  context.device().synchronize();
  executor_.masters_loaded(false);
}

}  // namespace zs
