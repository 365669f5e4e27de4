#include "bench/overlap/overlap_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace zs::bench {
namespace {

using Json = nlohmann::ordered_json;

Json efficiency_of(const OverlapReport& report, const OverlapReport::Phase& phase) {
  const auto efficiency = report.efficiency(phase);
  return efficiency ? Json(*efficiency) : Json();
}

std::string percent_of(const OverlapReport& report, const OverlapReport::Phase& phase) {
  const auto efficiency = report.efficiency(phase);
  return efficiency ? fmt::format("{:.0f} %", 100 * *efficiency) : "-";
}

/// What stands where the step has no efficiency.
std::string why_none(const OverlapReport& report) {
  if (report.step.hideable_ms() <= 0.01 * report.plan.step_ms) return ": there is next to nothing to hide";
  return fmt::format(": no efficiency, as no more can be hidden than steps differ by, {:.2f} ms", report.spread_ms);
}

Json to_object(const OverlapReport& report, const OverlapReport::Phase& phase) {
  return {{"phase", phase.name},
          {"compute_ms", phase.compute_ms},
          {"communication_ms", phase.communication_ms},
          {"step_ms", phase.step_ms},
          {"exposed_ms", phase.exposed_ms()},
          {"planned_exposed_ms", phase.planned_exposed_ms},
          {"hideable_ms", phase.hideable_ms()},
          {"hidden_ms", phase.hidden_ms()},
          {"overlap_efficiency", efficiency_of(report, phase)}};
}

std::string row(const OverlapReport& report, const OverlapReport::Phase& phase) {
  return fmt::format("{:<12}{:>12.2f}{:>16.2f}{:>12.2f}{:>12.2f}{:>12.2f}{:>12}\n", phase.name, phase.compute_ms,
                     phase.communication_ms, phase.step_ms, phase.exposed_ms(), phase.planned_exposed_ms,
                     percent_of(report, phase));
}

}  // namespace

std::string to_json(const OverlapReport& r) {
  Json phases = Json::array(), kinds = Json::array(), path = Json::array();
  for (const auto& phase : r.phases) phases.push_back(to_object(r, phase));
  for (const auto& [name, ms, hideable_ms] : r.kinds)
    kinds.push_back({{"kind", name}, {"ms", ms}, {"hideable_ms", hideable_ms}});
  for (const PathPiece& piece : r.plan.critical_path) {
    path.push_back({{"stream", name_of(piece.stream)},
                    {"phase", piece.phase},
                    {"first_op", piece.first_op},
                    {"last_op", piece.last_op},
                    {"ms", piece.ms}});
  }
  const Json json = {{"program", "bench_overlap"},
                     {"preset", r.preset},
                     {"dtype", r.dtype},
                     {"transport", r.transport},
                     {"strategy", r.strategy},
                     {"device", r.gpu.empty() ? "cpu" : "cuda"},
                     {"gpu", r.gpu.empty() ? Json() : Json(r.gpu)},
                     {"clock", r.gpu.empty() ? "host" : "gpu"},
                     {"is_meaningful", r.note.empty()},
                     {"note", r.note.empty() ? Json() : Json(r.note)},
                     {"ranks", r.ranks},
                     {"threads", r.threads},
                     {"micro_batch", r.micro_batch},
                     {"micro_batches", r.micro_batches},
                     {"sequence", r.sequence},
                     {"prefetch", r.prefetch},
                     {"limit", r.limit},
                     {"max_reductions_in_flight", r.max_reductions_in_flight},
                     {"reshard_after_forward", r.reshard_after_forward},
                     {"takes_turns", r.takes_turns},
                     {"spread_ms", r.spread_ms},
                     {"compute_ms", r.step.compute_ms},
                     {"communication_ms", r.step.communication_ms},
                     {"step_ms", r.step.step_ms},
                     {"host_compute_ms", r.host_compute_ms},
                     {"host_step_ms", r.host_step_ms},
                     {"exposed_ms", r.step.exposed_ms()},
                     {"planned_exposed_ms", r.step.planned_exposed_ms},
                     {"hideable_ms", r.step.hideable_ms()},
                     {"hidden_ms", r.step.hidden_ms()},
                     {"overlap_efficiency", efficiency_of(r, r.step)},
                     {"planned_step_ms", r.plan.step_ms},
                     {"phases", std::move(phases)},
                     {"kinds", std::move(kinds)},
                     {"critical_path", std::move(path)}};
  return json.dump();
}

std::string to_text(const OverlapReport& r) {
  std::string text = fmt::format(
      "{}: {}, {} x {} over {}, {}, {} x {} x {} tokens a rank; prefetch {}, limit {}, {} reductions in flight, "
      "reshard {}\n\n",
      r.preset, r.dtype, r.ranks, r.gpu.empty() ? fmt::format("{} threads", r.threads) : r.gpu, r.transport, r.strategy,
      r.micro_batches, r.micro_batch, r.sequence, r.prefetch, r.limit, r.max_reductions_in_flight,
      r.reshard_after_forward);
  text += fmt::format("{:<12}{:>12}{:>16}{:>12}{:>12}{:>12}{:>12}\n", "ms", "compute", "communication", "together",
                      "exposed", "on paper", "efficiency");
  for (const auto& phase : r.phases) text += row(r, phase);
  text += row(r, r.step);
  text += fmt::format("\n{:<12}{:>12}{:>12}\n", "ms", "alone", "hideable");
  for (const auto& [name, ms, hideable_ms] : r.kinds)
    text += fmt::format("{:<12}{:>12.2f}{:>12.2f}\n", name, ms, hideable_ms);
  if (!r.gpu.empty())
    text += fmt::format("\nby the GPU's clock; by the host's a step took {:.2f} ms, without communication {:.2f} ms\n",
                        r.host_step_ms, r.host_compute_ms);
  text += fmt::format("\nhideable {:.2f} ms, hidden {:.2f} ms", r.step.hideable_ms(), r.step.hidden_ms());
  text += r.efficiency(r.step) ? fmt::format(": overlap efficiency {}\n", percent_of(r, r.step)) : why_none(r) + "\n";
  text += fmt::format("\ncritical path of the plan, {:.2f} ms with every op as long as alone\n", r.plan.step_ms);
  for (const PathPiece& piece : r.plan.critical_path) {
    text += fmt::format("{:>12.2f}  {:<10}{:<11}{}{}\n", piece.ms, name_of(piece.stream), piece.phase, piece.first_op,
                        piece.first_op == piece.last_op ? "" : " .. " + piece.last_op);
  }
  return text;
}

std::string sweep_header() {
  return "| prefetch | limit | step, ms | compute, ms | communication, ms | exposed, ms | hideable, ms | overlap "
         "efficiency "
         "|\n"
         "|---|---|---|---|---|---|---|---|\n";
}

std::string sweep_row(const OverlapReport& r) {
  return fmt::format("| {} | {} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {} |\n", r.prefetch, r.limit,
                     r.step.step_ms, r.step.compute_ms, r.step.communication_ms, r.step.exposed_ms(),
                     r.step.hideable_ms(), percent_of(r, r.step));
}

}  // namespace zs::bench
