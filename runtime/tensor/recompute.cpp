#include "runtime/tensor/recompute.h"

#include <algorithm>
#include <utility>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/op_trace.h"

namespace zs {
namespace {

struct Recomputed {
  std::vector<Tensor> inputs;
  TensorsFunction body;
  TensorFunction last;
  std::function<Tensor()> take_first = {};  // set: gives the first input, which a keeper has

  std::vector<Tensor> take_inputs() const {
    std::vector<Tensor> taken = inputs;
    if (take_first) {
      const std::shared_ptr<AutogradState> state = taken.front().autograd();
      taken.front() = take_first();
      taken.front().set_autograd(state);
    }
    return taken;
  }
};

/// Runs the function for the first time: nothing is recorded, its ops are taken down.
Tensor run_first(Context& context, const Recomputed& function, OpTrace& trace) {
  OpMode mode = context.mode();
  mode.records = false;
  mode.noted = &trace;
  const OpModeGuard guard(context, mode);
  std::vector<Tensor> inputs;
  for (const Tensor& input : function.inputs) inputs.push_back(OpTrace::cut(input));
  const Tensor y = function.last(function.body(inputs));
  if (y.requires_grad())
    throw UsageError("a recomputed function gives a tensor that wants a gradient and is none of its inputs",
                     "pass it in among the inputs");
  return y.detach();
}

/// The output, recorded. Its elements, and all else that `last` makes, are noted in `unfilled`.
Tensor run_again(Context& context, const Recomputed& function, OpTrace& trace,
                 std::vector<std::weak_ptr<const void>>& unfilled) {
  for (const Tensor& input : function.inputs)
    if (input && context.mode().saved != nullptr) context.storages().check_saved(input.buffer(), *context.mode().saved);
  OpMode mode;
  mode.runs_again = true;
  mode.repeated = &trace;
  trace.begin();
  const OpModeGuard guard(context, mode);
  const std::vector<Tensor> values = function.body(function.take_inputs());
  mode.unfilled = &unfilled;
  const OpModeGuard last_guard(context, mode);
  Tensor y = function.last(values);
  trace.end();
  return y;
}

Rerun rerun_of(Context& context, std::shared_ptr<const Recomputed> function, std::shared_ptr<OpTrace> trace,
               const Tensor& first) {
  return [&context, function = std::move(function), trace = std::move(trace), shape = first.shape(),
          dtype = first.dtype()] {
    std::vector<std::weak_ptr<const void>> unfilled;
    Tensor y = run_again(context, *function, *trace, unfilled);
    if (!y || y.shape() != shape || y.dtype() != dtype)
      throw UsageError(fmt::format("a recomputed function gave {} {}, and now gives {}", name_of(dtype), shape.str(),
                                   y ? y.describe() : "an empty tensor"),
                       "it has to do the same work both times: what it refers to must not change");
    std::shared_ptr<AutogradState> output = y.autograd();
    y = {};
    const bool is_kept =
        std::any_of(unfilled.begin(), unfilled.end(), [](const auto& storage) { return !storage.expired(); });
    if (is_kept)
      throw UsageError("the last part of a recomputed function makes what a backward keeps",
                       "it belongs into the first part");
    return output;
  };
}

}  // namespace

Tensor recompute(std::vector<Tensor> inputs, TensorFunction function) {
  if (!function) throw UsageError("recompute() of an empty function", "give it one");
  return recompute(
      std::move(inputs),
      [function = std::move(function)](const std::vector<Tensor>& in) { return std::vector<Tensor>{function(in)}; },
      [](const std::vector<Tensor>& output) { return output.front(); });
}

Tensor recompute(std::vector<Tensor> inputs, TensorsFunction body, TensorFunction last, InputKeeper* keeper) {
  if (inputs.empty() || !inputs.front())
    throw UsageError("recompute() of a function without inputs", "pass at least one tensor");
  Context& context = inputs.front().context();
  if (!context.is_grad_enabled()) return last(body(inputs));
  const auto function = std::make_shared<Recomputed>(Recomputed{std::move(inputs), std::move(body), std::move(last)});
  const auto trace = std::make_shared<OpTrace>();
  if (keeper != nullptr) keeper->before_forward();
  Tensor y = run_first(context, *function, *trace);
  record_rerun(y, function->inputs, trace->parameters(), rerun_of(context, function, trace, y));
  if (keeper != nullptr && y.requires_grad()) {
    Tensor& first = function->inputs.front();
    Tensor input = first.detach();
    Tensor cut;  // knows only what it came from
    cut.set_autograd(first.autograd());
    first = std::move(cut);
    function->take_first = keeper->keep(std::move(input));
  }
  return y;
}

}  // namespace zs
