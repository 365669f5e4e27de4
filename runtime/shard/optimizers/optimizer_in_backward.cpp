// Updates in backward, unit by unit, as soon as each gradient is reduced.
#include <algorithm>
#include <cmath>

#include "runtime/base/standard_streams.h"
#include "runtime/base/usage_error.h"
#include "runtime/shard/optimizers/optimizer.h"
#include "runtime/tensor/host_view.h"

namespace zs {
namespace {

/// Adds the squares of a unit's gradients to `sum`: no norm tells in time that one is not finite.
void add_squares(const Context& context, const std::string& unit, std::vector<Buffer> parts, const Buffer& sum) {
  if (parts.empty()) return;
  std::vector<Buffer> reads = parts;
  reads.push_back(sum);
  context.launch({"squares:" + unit, std::move(reads), {sum}},
                 [&kernels = context.kernels(), sum, parts = std::move(parts)](ExecContext& exec) {
                   kernels.squared_norm(exec, sum, parts);
                 });
}

/// One line, the first time that the sum is not finite.
void report_not_finite(const Executor& executor, const std::string& name, const Buffer& sum,
                       const std::shared_ptr<bool>& has_reported) {
  launch_on_host(executor.context(), {"report_not_finite", {sum}, {}},
                 [has_reported, name, rank = executor.rank()](ExecContext&, const std::vector<Buffer>& reads) {
                   if (*has_reported || std::isfinite(*reads[0].as<double>())) return;
                   *has_reported = true;
                   print_to_stderr(
                       "zshard: warning: rank {}: {} in backward has updated weights by a gradient that is not finite: "
                       "load a checkpoint; behind backward such a step is skipped\n",
                       rank, name);
                 });
}

}  // namespace

Optimizer::~Optimizer() {
  settle();
  if (hook_ < 0 || model_.has_ended()) return;
  executor_.forget_hook(hook_);
  executor_.end_transient_gradients();
}

/// Refuses options that need the gradients of more than one unit at once, or an order of their own: they come after
/// backward.
void Optimizer::check_in_backward() const {
  if (executor_.has_transient_gradients()) {
    throw UsageError(fmt::format("{} of a runtime whose gradients another optimizer takes in backward", name_),
                     "end that one first: it is the only one of its runtime");
  }
  if (!options_.in_backward) return;
  const auto refuse = [&](const std::string& why, const char* what_to_do) {
    throw UsageError(fmt::format("{} in backward {}", name_, why), what_to_do);
  };
  if (options_.clip != 0) {
    refuse(fmt::format("with clip = {}: the norm of all gradients is known behind it only", options_.clip),
           "set clip = 0, or leave in_backward out");
  }
  if (has_average())
    refuse("with an average of the weights, which is updated behind it", "set average = 0, or leave in_backward out");
  if (definition_.has_norms)
    refuse("goes by norms of whole parameters, which are known behind it", "leave in_backward out");
  if (definition_.is_apart) refuse("updates by what ranks exchange behind it", "leave in_backward out");
}

void Optimizer::start_in_backward() {
  executor_.make_gradients_transient(name_);
  hook_ = executor_.on_reduced([this](int unit) { update_in_backward(unit); });
}

void Optimizer::check_time(const char* call, bool is_wanted) const {
  model_.check(fmt::format("{} of {}", call, name_));
  if (options_.in_backward == is_wanted) return;
  throw UsageError(
      fmt::format("{} of {}, which updates {}", call, name_, is_wanted ? "behind backward" : "in backward"),
      is_wanted ? "call step(), or set in_backward = true"
                : "call begin_step() before the step's last micro-batch, and end_step() behind it");
}

void Optimizer::begin_step(float lr) {
  check_time("begin_step()", true);
  executor_.step().check_no_micro_batch("begin_step()");
  executor_.check_no_update_is_open("begin_step()");
  if (has_begun_ && begun_at_ == executor_.step().dropped())
    throw UsageError(fmt::format("begin_step() of {} twice", name_), "call end_step() behind each begin_step()");
  set_scalars(lr, 1);
  correct_scalars();
  for (Unit& unit : units_) std::fill(unit.slots.begin(), unit.slots.end(), kNotUpdated);
  const Context& context = executor_.context();
  context.launch({"zero_squares", {}, {skips_.buffer(DType::f64, 1)}},
                 [&kernels = context.kernels(), out = skips_.buffer(DType::f64, 1)](ExecContext& exec) {
                   kernels.zero(exec, out);
                 });
  has_begun_ = true;
  begun_at_ = executor_.step().dropped();
}

void Optimizer::update_in_backward(int unit) {
  if (!has_begun_)
    throw UsageError(fmt::format("{} in backward has no learning rate for this step", name_),
                     "call begin_step() before the step's last micro-batch begins");
  executor_.take_gradient(unit);
  note_updated(static_cast<std::size_t>(unit));
  const FlatParameter& flat = executor_.units()[static_cast<std::size_t>(unit)];
  std::vector<Buffer> updated;
  for (const Range& range : units_[static_cast<std::size_t>(unit)].held)
    if (units_[static_cast<std::size_t>(unit)].slots[range.view] != kNotUpdated)
      updated.push_back(flat.held_grad_buffer().slice(range.offset, range.count));
  add_squares(executor_.context(), flat.name, std::move(updated), skips_.buffer(DType::f64, 1));
  update_units({static_cast<std::size_t>(unit)});
  executor_.updated_in_backward(unit);
}

void Optimizer::end_step() {
  check_time("end_step()", true);
  if (!has_begun_)
    throw UsageError(fmt::format("end_step() of {} before its begin_step()", name_),
                     "call begin_step() before the step's last micro-batch begins");
  executor_.step().check_update();
  has_begun_ = false;
  executor_.wait_reductions();
  counts_.count([this](std::size_t unit, std::size_t i) { return units_[unit].slots[i]; }, all_scalars());
  note_update();
  executor_.clear_gradients();
  executor_.masters_updated();
  report_not_finite(executor_, name_, skips_.buffer(DType::f64, 1), has_reported_);
}

}  // namespace zs
