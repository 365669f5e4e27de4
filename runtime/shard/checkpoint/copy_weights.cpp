#include "runtime/shard/checkpoint/copy_weights.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/tensor.h"

namespace zs {
namespace {

constexpr const char* kCall = "copy_weights()";

bool are_alike(const ShardSegment& a, const ShardSegment& b) {
  return a.view == b.view && a.shard_offset == b.shard_offset && a.view_offset == b.view_offset && a.count == b.count &&
         a.run == b.run && a.stride == b.stride;
}

void check_unit(const FlatParameter& from, const FlatParameter& to, float factor) {
  const auto &a = from.layout->views(), &b = to.layout->views();
  const auto differ = [&](const std::string& what) {
    throw UsageError(fmt::format("{} between units {} and {}: {}", kCall, from.name, to.name, what),
                     "make both models of the same modules, with the same units, strategy and layout");
  };
  if (a.size() != b.size()) differ(fmt::format("{} parameters, and {}", a.size(), b.size()));
  for (std::size_t i = 0; i < a.size(); ++i)
    if (a[i].name != b[i].name || a[i].shape != b[i].shape)
      differ(fmt::format("{} {}, and {} {}", a[i].name, a[i].shape.str(), b[i].name, b[i].shape.str()));
  const std::vector<ShardSegment> mine = from.held_segments(), theirs = to.held_segments();
  if (from.layout->held_elems() != to.layout->held_elems() ||
      !std::equal(mine.begin(), mine.end(), theirs.begin(), theirs.end(), are_alike))
    differ("this rank holds other parts of them");
  for (const FlatParameter* unit : {&from, &to}) {
    if (unit->has_masters_on_host()) differ("the host keeps the masters of " + unit->name);
    if (!unit->has_master && factor != 1) differ("no f32 masters to blend of " + unit->name);
  }
}

void check_models(const Executor& from, const Executor& to, float factor) {
  if (&from == &to) throw UsageError(fmt::format("{} from a model to itself", kCall), "name another model");
  if (&from.context() != &to.context())
    throw UsageError(fmt::format("{} between models of two contexts", kCall), "make both in one context");
  if (!std::isfinite(factor)) throw UsageError(fmt::format("{} with a factor of {}", kCall, factor), "give a number");
  if (from.units().size() != to.units().size() || from.ignored().size() != to.ignored().size())
    throw UsageError(fmt::format("{} from {} units and {} buffers to {} and {}", kCall, from.units().size(),
                                 from.ignored().size(), to.units().size(), to.ignored().size()),
                     "make both models of the same modules, with the same units");
  for (std::size_t i = 0; i < from.units().size(); ++i) check_unit(from.units()[i], to.units()[i], factor);
  for (std::size_t i = 0; i < from.ignored().size(); ++i) {
    const Parameter &a = *from.ignored()[i], &b = *to.ignored()[i];
    if (a.name() != b.name() || a.shape() != b.shape())
      throw UsageError(
          fmt::format("{} from {} {} to {} {}", kCall, a.name(), a.shape().str(), b.name(), b.shape().str()),
          "make both models of the same modules");
  }
}

/// out := factor in + (1 - factor) out
void blend(Context& context, const Buffer& out, const Buffer& in, float factor) {
  if (out.empty()) return;
  if (factor == 1) {
    context.launch({"copy_weights", {in}, {out}}, [&kernels = context.kernels(), out, in](ExecContext& exec) {
      out.dtype == in.dtype ? kernels.copy(exec, out, in) : kernels.cast(exec, out, in);
    });
    return;
  }
  const Tensor scaled = Tensor::empty(context, {in.elems}, DType::f32, "copy_weights");
  context.launch({"blend_weights", {in, out}, {scaled.buffer(), out}},
                 [&kernels = context.kernels(), out, in, part = scaled.buffer(), factor](ExecContext& exec) {
                   kernels.scale(exec, part, in, factor);
                   kernels.scale(exec, out, out, 1 - factor);
                   kernels.add(exec, out, out, part);
                 });
}

}  // namespace

void copy_weights(Executor& from, Executor& to, float factor) {
  check_models(from, to, factor);
  from.step().check_no_micro_batch(kCall);
  to.step().check_between_steps(kCall);
  from.deferred_updates().settle();
  to.wait_readers();
  Context& context = to.context();
  for (std::size_t i = 0; i < from.units().size(); ++i)
    blend(context, to.units()[i].weights_buffer(), from.units()[i].weights_buffer(), factor);
  for (std::size_t i = 0; i < from.ignored().size(); ++i)
    blend(context, to.ignored()[i]->value(), from.ignored()[i]->value(), 1);
  to.masters_loaded(false);
}

}  // namespace zs
