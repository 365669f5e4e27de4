#include "model/train/profile/step_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

namespace zs {
namespace {

const char* title_of(StepPart part) {
  switch (part) {
    case StepPart::products: return "products";
    case StepPart::attention: return "attention";
    case StepPart::norms: return "norms";
    case StepPart::elementwise: return "elementwise";
    case StepPart::loss: return "loss";
    case StepPart::optimizer: return "optimizer";
    case StepPart::gathers: return "gathers";
    case StepPart::reductions: return "reductions";
    case StepPart::waiting: return "waiting";
    case StepPart::data: return "data";
    case StepPart::other: return "other";
  }
  return "?";
}

bool begins_with_any(std::string_view name, std::initializer_list<std::string_view> begins) {
  return std::any_of(begins.begin(), begins.end(), [&](std::string_view begin) { return name.starts_with(begin); });
}

/// True for an operation of a communicator: "all_reduce(status)"; or of rows between experts.
bool is_exchange(std::string_view name) {
  return begins_with_any(name, {"all_gather(", "reduce_scatter(", "all_reduce(", "broadcast(", "all_to_all(",
                                "barrier(", "dispatch_rows(", "return_rows("});
}

/// Intervals in order, and apart from each other.
using Intervals = std::vector<Interval>;

Intervals united(Intervals all) {
  std::sort(all.begin(), all.end(), [](const Interval& a, const Interval& b) { return a.begin_ns < b.begin_ns; });
  Intervals result;
  for (const Interval& next : all) {
    if (result.empty() || next.begin_ns > result.back().end_ns) {
      result.push_back(next);
    } else {
      result.back().end_ns = std::max(result.back().end_ns, next.end_ns);
    }
  }
  return result;
}

Intervals union_of(Intervals a, const Intervals& b) {
  a.insert(a.end(), b.begin(), b.end());
  return united(std::move(a));
}

/// Between ranks: a disk is no part of that.
Intervals ops_of(const StepTimes& step, std::initializer_list<StreamRole> roles) {
  Intervals all;
  for (const StreamRole role : roles)
    for (const OpTime& time : step.of(role))
      if (!time.is_wait && !begins_with_any(time.name, {"read_from_disk", "write_to_disk"}))
        all.push_back({time.start_ns, time.end_ns});
  return united(std::move(all));
}

double shared_ms(const Interval& of, const Intervals& with) {
  double ms = 0;
  auto at = std::partition_point(with.begin(), with.end(), [&](const Interval& i) { return i.end_ns <= of.begin_ns; });
  for (; at != with.end() && at->begin_ns < of.end_ns; ++at)
    ms += Interval{std::max(of.begin_ns, at->begin_ns), std::min(of.end_ns, at->end_ns)}.ms();
  return ms;
}

double length_ms(const Intervals& all) {
  double ms = 0;
  for (const Interval& interval : all) ms += interval.ms();
  return ms;
}

/// A product of (m, k) and (k, n): the root of the product of its three matrices' elements is m n k. One of experts has
/// as many matrices as there are of them, of which each row meets one.
double product_flops(const OpTime& op) {
  if (op.reads.size() < 2 || op.writes.empty()) return 0;
  const bool is_of_experts = op.name.starts_with("grouped") && op.reads.size() > 2;  // and behind: where each begins
  const double matrices = is_of_experts ? static_cast<double>(std::max<std::int64_t>(1, op.reads[2].elems - 1)) : 1;
  return 2 * std::sqrt(static_cast<double>(op.reads[0].elems) * static_cast<double>(op.reads[1].elems) *
                       static_cast<double>(op.writes[0].elems) / matrices);
}

/// Causal: half of 4 x T x elements of the output forward, and 2.5 times that backward.
double attention_flops(const OpTime& op, std::int64_t sequence) {
  if (op.writes.empty() || !op.name.starts_with("attention")) return 0;
  const bool is_backward = op.name == "attention_backward";
  const double elems = static_cast<double>((is_backward ? op.reads : op.writes).at(0).elems);
  return (is_backward ? 5 : 2) * static_cast<double>(sequence) * elems;
}

}  // namespace

StepPart part_of(const OpTime& op) {
  const std::string_view name = op.name;
  if (is_exchange(name)) return StepPart::waiting;
  if (begins_with_any(name, {"from_host", "samples"})) return StepPart::data;
  if (begins_with_any(name, {"cross_entropy", "mean_loss", "store_loss"})) return StepPart::loss;
  if (std::string_view(op.phase) == "optimizer") return StepPart::optimizer;
  if (begins_with_any(name, {"linear", "matmul", "lm_head", "grouped_", "router_"})) return StepPart::products;
  if (begins_with_any(name, {"attention", "rotary"})) return StepPart::attention;
  if (begins_with_any(name, {"layer_norm", "add_layer_norm", "rms_norm", "add_rms_norm", "qk_norm"}))
    return StepPart::norms;
  return StepPart::elementwise;
}

void StepParts::add_op(const OpTime& op) {
  const StepPart which = part_of(op);
  Part& sum = part(which);
  sum.ms += op.ms();
  for (const auto* buffers : {&op.reads, &op.writes})
    for (const Buffer& buffer : *buffers) sum.bytes += static_cast<double>(buffer.bytes());
  if (which == StepPart::products) sum.flops += product_flops(op);
  if (which == StepPart::attention) sum.flops += attention_flops(op, sequence_);
}

void StepParts::add(const StepTimes& step) {
  const Intervals gathers = ops_of(step, {StreamRole::unshard}),
                  reductions = ops_of(step, {StreamRole::reduce, StreamRole::finish}),
                  both = union_of(gathers, reductions), reads = united(step.reads);
  double exposed_gathers_ms = 0, exposed_reductions_ms = 0;
  std::int64_t at = step.span.begin_ns;
  const auto idle_until = [&](std::int64_t end_ns) {
    const Interval gap{at, std::max(at, end_ns)};
    const double reading_ms = shared_ms(gap, reads);
    part(StepPart::data).ms += reading_ms;
    part(StepPart::other).ms += gap.ms() - reading_ms;
  };
  for (const OpTime& time : step.of(StreamRole::compute)) {
    idle_until(time.start_ns);
    at = time.end_ns;
    if (!time.is_wait) {
      add_op(time);
      continue;
    }
    const Interval wait{time.start_ns, time.end_ns};
    const bool is_for_gather = time.name == zs::name_of(StreamRole::unshard);
    const double first_ms = shared_ms(wait, is_for_gather ? gathers : reductions), both_ms = shared_ms(wait, both);
    (is_for_gather ? exposed_gathers_ms : exposed_reductions_ms) += first_ms;
    (is_for_gather ? exposed_reductions_ms : exposed_gathers_ms) += both_ms - first_ms;
    part(StepPart::waiting).ms += wait.ms() - both_ms;
  }
  idle_until(step.span.end_ns);
  part(StepPart::gathers).ms += exposed_gathers_ms;
  part(StepPart::reductions).ms += exposed_reductions_ms;
  hidden_gathers_ms_ += std::max(0.0, length_ms(gathers) - exposed_gathers_ms);
  hidden_reductions_ms_ += std::max(0.0, length_ms(reductions) - exposed_reductions_ms);
  all_ms_ += step.span.ms();
  ++steps_;
}

std::string StepParts::row(StepPart which, const StepCeilings& ceilings) const {
  const Part& sum = of(which);
  std::string line = fmt::format("  {:<14}{:>10.2f}{:>8.1f} %", title_of(which), sum.ms / steps_,
                                 all_ms_ > 0 ? 100 * sum.ms / all_ms_ : 0);
  const auto rate = [&](double amount, double ceiling, const char* unit) {
    if (amount <= 0 || sum.ms <= 0) return;
    const double reached = amount / sum.ms * 1e-6;  // a ms: in 10^9 a second
    line += fmt::format("{:>10.1f} {:<8}", reached, unit);
    if (ceiling > 0) line += fmt::format("{:>5.0f} % of {:.1f}", 100 * reached / ceiling, ceiling);
  };
  switch (which) {
    case StepPart::products:
    case StepPart::attention: rate(sum.flops, ceilings.gflops, "GFLOP/s"); break;
    case StepPart::norms:
    case StepPart::elementwise:
    case StepPart::loss:
    case StepPart::optimizer: rate(sum.bytes, ceilings.copy_gb_s, "GB/s"); break;
    case StepPart::gathers:
      line += fmt::format("   exposed; {:.2f} ms more are hidden behind compute", hidden_gathers_ms());
      break;
    case StepPart::reductions:
      line += fmt::format("   exposed; {:.2f} ms more are hidden behind compute", hidden_reductions_ms());
      break;
    case StepPart::waiting: line += "   for other ranks, and for other streams otherwise"; break;
    case StepPart::data: line += "   the host reads samples"; break;
    case StepPart::other: line += "   nothing to do: the host has enqueued nothing"; break;
  }
  return line + "\n";
}

std::string StepParts::describe(const StepCeilings& ceilings) const {
  if (steps_ == 0) return "";
  std::string text = fmt::format("  {:<14}{:>10}{:>10}{:>12}{:>20}\n", "part", "ms", "share", "rate", "of its ceiling");
  double sum_ms = 0;
  for (int i = 0; i < kStepParts; ++i) {
    text += row(static_cast<StepPart>(i), ceilings);
    sum_ms += parts_[static_cast<std::size_t>(i)].ms / steps_;
  }
  return text + fmt::format("  {:<14}{:>10.2f}{:>8.1f} %   of {:.2f} ms a step\n", "sum", sum_ms,
                            100 * sum_ms / step_ms(), step_ms());
}

}  // namespace zs
