#include "runtime/shard/optimizers/lost_updates.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/host_view.h"

namespace zs {
namespace {

Strided dense(const Buffer& buffer) { return {buffer, {1}}; }

/// out := x where the gradient is not 0, else NaN, which equals nothing.
void keep_where_updated(ExecContext& exec, const KernelTable& kernels, const Buffer& out, const Buffer& grad,
                        const Buffer& x) {
  kernels.map(exec, {.op = MapOp::where,
                     .shape = {x.elems},
                     .out = dense(out),
                     .in = {dense(grad), dense(x), Strided{}},
                     .constants = {0, 0, std::numeric_limits<float>::quiet_NaN()}});
}

/// Count of elements that are the same in `a` and `b`.
struct Tally {
  Buffer a, b, into;
};

}  // namespace

LostUpdates::LostUpdates(Executor& executor, const std::vector<std::string>& patterns) : executor_(executor) {
  for (const std::string& pattern : patterns) {
    patterns_.emplace_back(pattern);
    groups_.push_back(pattern);
  }
  groups_.emplace_back(patterns.empty() ? "all" : "others");
  if (executor.has_transient_gradients())
    throw UsageError("lost updates of an optimizer that updates in backward", "leave in_backward out");
  for (const FlatParameter& unit : executor.units()) {
    const Residence& residence = unit.placement->options.residence;
    if (residence.has_masters_on_host || residence.has_gradients_on_host)
      throw UsageError(fmt::format("lost updates of unit {}, of which the host keeps masters or gradients", unit.name),
                       "keep them on the device");
  }
  const std::int64_t bytes = std::ssize(groups_) * std::int64_t{kColumns} * size_of(DType::f32);
  counts_ = executor.context().pool().acquire(bytes, executor.context().stream(), "scalars");
}

Buffer LostUpdates::counts() const { return counts_.buffer(DType::f32, std::ssize(groups_) * std::int64_t{kColumns}); }

std::size_t LostUpdates::group_of(const std::string& name) const {
  return static_cast<std::size_t>(
      std::find_if(patterns_.begin(), patterns_.end(), [&](const NamePattern& one) { return one.matches(name); }) -
      patterns_.begin());
}

void LostUpdates::begin() {
  executor_.wait_reductions();
  Context& context = executor_.context();
  kept_.clear();
  for (std::size_t i = 0; i < executor_.units().size(); ++i) {
    const FlatParameter& unit = executor_.units()[i];
    if (!unit.grad_is_written || !executor_.counts_in_norm(unit)) continue;
    const std::int64_t elems = unit.layout->held_elems();
    const Buffer copy_now = unit.compute_copy_buffer(), master = unit.master_buffer(), grad = unit.held_grad_buffer();
    const auto acquire = [&](DType dtype) {
      return context.pool().acquire(elems * size_of(dtype), context.stream(), "weights_before");
    };
    Kept& kept =
        kept_.emplace_back(Kept{i, acquire(DType::f32), copy_now.empty() ? Memory() : acquire(copy_now.dtype)});
    const Buffer before = kept.master.buffer(DType::f32, elems);
    context.launch({"keep_masters:" + unit.name, {master, grad}, {before}},
                   [&kernels = context.kernels(), before, grad, master](ExecContext& exec) {
                     keep_where_updated(exec, kernels, before, grad, master);
                   });
    if (copy_now.empty()) continue;
    const Buffer copy = kept.copy.buffer(copy_now.dtype, elems);
    context.launch({"keep_copies:" + unit.name, {copy_now, grad}, {copy}},
                   [&kernels = context.kernels(), copy, grad, copy_now](ExecContext& exec) {
                     keep_where_updated(exec, kernels, copy, grad, copy_now);
                   });
  }
}

/// Parts that this rank counts; what every rank holds whole, one counts.
std::vector<LostUpdates::Part> LostUpdates::parts_of(const Kept& kept) const {
  const FlatParameter& unit = executor_.units()[kept.unit];
  const std::int64_t elems = unit.layout->held_elems();
  const Buffer before = kept.master.buffer(DType::f32, elems), now = unit.master_buffer(),
               copy_now = unit.compute_copy_buffer(),
               copy_before = copy_now.empty() ? Buffer{} : kept.copy.buffer(copy_now.dtype, elems);
  std::vector<Part> parts;
  for (const ShardSegment& segment : unit.held_segments()) {
    const FlatView& view = unit.layout->views()[segment.view];
    if (!unit.parameters[segment.view]->is_trainable() || !unit.counts(view) || (view.is_whole && unit.slice != 0))
      continue;
    const auto part = [&](const Buffer& all) {
      return all.empty() ? Buffer{} : all.slice(segment.shard_offset, segment.count);
    };
    parts.push_back({part(before), part(now), part(copy_before), part(copy_now), group_of(view.name)});
  }
  return parts;
}

void LostUpdates::count(const Kept& kept) {
  Context& context = executor_.context();
  std::vector<Tally> tallies;
  OpInfo info{"count_lost:" + executor_.units()[kept.unit].name, {counts()}, {counts()}};
  std::int64_t most = 0;
  for (const Part& part : parts_of(kept)) {
    const auto add = [&](const Buffer& a, const Buffer& b, Column column) {
      const auto at = static_cast<std::int64_t>(part.group * kColumns + column);
      tallies.push_back({a, b, counts().slice(at, 1)});
      info.reads.insert(info.reads.end(), {a, b});
      most = std::max(most, a.elems);
    };
    add(part.before, part.before, elems);
    add(part.before, part.now, masters);
    if (part.copy_now.empty()) add(part.before, part.now, copies);
    if (!part.copy_now.empty()) add(part.copy_before, part.copy_now, copies);
  }
  if (tallies.empty()) return;
  const Memory memory = context.pool().acquire((most + 1) * size_of(DType::f32), context.stream(), "weights_before");
  const Buffer flags = memory.buffer(DType::f32, most + 1);
  info.writes.push_back(flags);
  context.launch(
      std::move(info), [&kernels = context.kernels(), tallies = std::move(tallies), flags](ExecContext& exec) {
        for (const auto& [a, b, into] : tallies) {
          const Buffer same = flags.slice(1, a.elems), sum = flags.slice(0, 1);
          kernels.map(exec,
                      {.op = MapOp::eq, .shape = {a.elems}, .out = dense(same), .in = {dense(a), dense(b), Strided{}}});
          kernels.sum(exec, sum, same, 1.0f);
          kernels.accumulate(exec, into, sum);
        }
      });
}

void LostUpdates::end() {
  executor_.deferred_updates().settle();
  Context& context = executor_.context();
  context.launch({"zero_lost", {}, {counts()}},
                 [&kernels = context.kernels(), out = counts()](ExecContext& exec) { kernels.zero(exec, out); });
  for (const Kept& kept : kept_) count(kept);
  kept_.clear();
  executor_.norm_comm().all_reduce(context.stream(), "lost_updates", counts(), ReduceOp::sum);
}

std::vector<LostShare> LostUpdates::shares() const {
  const HostView view(executor_.context(), executor_.context().stream(), counts());
  const float* row = view.as<float>();
  const bool has_copies = std::any_of(executor_.units().begin(), executor_.units().end(),
                                      [](const FlatParameter& unit) { return static_cast<bool>(unit.compute_copy); });
  std::vector<LostShare> shares;
  for (std::size_t i = 0; i < groups_.size(); ++i, row += kColumns) {
    const auto all = static_cast<double>(row[elems]);
    if (all == 0) continue;
    LostShare& share = shares.emplace_back(LostShare{groups_[i], all, static_cast<double>(row[masters]) / all, {}});
    if (has_copies) share.copies = static_cast<double>(row[copies]) / all;
  }
  return shares;
}

}  // namespace zs
