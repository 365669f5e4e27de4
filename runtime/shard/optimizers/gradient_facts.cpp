#include "runtime/shard/optimizers/gradient_facts.h"

#include <algorithm>
#include <cmath>

#include "runtime/tensor/host_view.h"

namespace zs {
namespace {

/// Adds the elements to a fact whose norm is squared for now.
void add(GradientFact& fact, const float* elements, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto magnitude = static_cast<double>(std::abs(elements[i]));
    if (!std::isfinite(magnitude)) {
      fact.not_finite += 1;
      continue;
    }
    fact.norm += magnitude * magnitude;
    fact.largest = std::max(fact.largest, magnitude);
  }
}

}  // namespace

std::string GradientFacts::refusal(Executor& executor) {
  if (executor.has_transient_gradients()) return "they are updated in backward";
  for (const FlatParameter& unit : executor.units())
    if (unit.placement->options.residence.has_gradients_on_host) return "the host keeps them (offload.gradients)";
  return {};
}

/// Each rank's part of every parameter, whole ones on the first that holds them.
void GradientFacts::look(const FlatParameter& unit) {
  Context& context = executor_.context();
  const HostView view(context, context.stream(), unit.held_grad_buffer());
  const float* const gradient = view.as<float>();
  const std::size_t first = facts_.size();
  for (const FlatView& parameter : unit.layout->views()) facts_.push_back({parameter.name, unit.name});
  if (!unit.grad_is_written || !executor_.counts_in_norm(unit)) return;
  for (const ShardSegment& segment : unit.held_segments()) {
    const FlatView& parameter = unit.layout->views()[segment.view];
    if (!unit.counts(parameter) || (parameter.is_whole && unit.slice != 0)) continue;
    add(facts_[first + segment.view], gradient + segment.shard_offset, segment.count);
  }
}

void GradientFacts::take() {
  executor_.wait_reductions();
  facts_.clear();
  for (const FlatParameter& unit : executor_.units()) look(unit);
  std::vector<float> sums, largest;
  for (const GradientFact& fact : facts_) {
    sums.insert(sums.end(), {static_cast<float>(fact.norm), static_cast<float>(fact.not_finite)});
    largest.push_back(static_cast<float>(fact.largest));
  }
  Context& context = executor_.context();
  const auto reduced = [&](std::vector<float> values, ReduceOp op) {
    const auto count = static_cast<std::int64_t>(values.size());
    const Memory memory = context.pool().acquire(count * size_of(DType::f32), context.stream(), "scalars");
    const Buffer buffer = memory.buffer(DType::f32, count);
    context.launch({"gradient_facts", {}, {buffer}}, upload_of(context.kernels(), buffer, std::move(values)));
    executor_.norm_comm().all_reduce(context.stream(), "gradient_facts", buffer, op);
    const HostView view(context, context.stream(), buffer);
    return std::vector<float>(view.as<float>(), view.as<float>() + count);
  };
  sums = reduced(std::move(sums), ReduceOp::sum);
  largest = reduced(std::move(largest), ReduceOp::max);
  for (std::size_t i = 0; i < facts_.size(); ++i) {
    facts_[i].norm = std::sqrt(static_cast<double>(sums[2 * i]));
    facts_[i].not_finite = static_cast<double>(sums[2 * i + 1]);
    facts_[i].largest = static_cast<double>(largest[i]);
  }
}

}  // namespace zs
