#include "bench/step/step_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "model/train/run_dir/metrics.h"
#include "runtime/base/units.h"

namespace zs::bench {
namespace {

using Json = nlohmann::ordered_json;

Json bytes_or_null(const std::optional<StepReport::Pss>& pss, double StepReport::Pss::*which) {
  return pss ? Json(static_cast<std::int64_t>((*pss).*which)) : Json();
}

Json to_object(const StepProfile& profile) {
  if (profile.rows.empty()) return {};
  Json ops = Json::array();
  for (const auto& row : profile.rows) {
    ops.push_back({{"stream", name_of(row.stream)},
                   {"op", row.op},
                   {"is_wait", row.is_wait},
                   {"calls", row.calls},
                   {"ms", row.ms},
                   {"percent", 100 * row.ms / profile.step_ms}});
  }
  return {{"steps", profile.steps},           {"step_ms", profile.step_ms},   {"busy_ms", profile.busy_ms},
          {"waiting_ms", profile.waiting_ms}, {"idle_ms", profile.idle_ms()}, {"ops", std::move(ops)}};
}

std::string describe(const StepProfile& profile) {
  if (profile.rows.empty()) return "\nwhere a step went is not known: this device takes no times of its work\n";
  std::string text = fmt::format("\nwhere a step of rank 0 went, mean of {} steps\n{:<10}{:<28}{:>8}{:>12}{:>9}\n",
                                 profile.steps, "stream", "op", "calls", "ms", "%");
  const auto line = [&](const char* stream, const std::string& op, const std::string& calls, double ms) {
    text += fmt::format("{:<10}{:<28}{:>8}{:>12.3f}{:>9.2f}\n", stream, op, calls, ms, 100 * ms / profile.step_ms);
  };
  for (const auto& row : profile.rows) line(name_of(row.stream), row.op, fmt::format("{:g}", row.calls), row.ms);
  line("compute", "all ops", "", profile.busy_ms);
  line("compute", "waiting for other streams", "", profile.waiting_ms);
  line("compute", "nothing to do", "", profile.idle_ms());
  line("", "the step", "", profile.step_ms);
  return text;
}

std::string describe_ranks(const StepReport& r) {
  if (r.gpu.empty()) return fmt::format("{} x {} threads", r.ranks, r.threads);
  if (r.ranks_a_gpu == 1) return fmt::format("{} x {}", r.ranks, r.gpu);
  return fmt::format("{} ranks, up to {} on one {}", r.ranks, r.ranks_a_gpu, r.gpu);
}

std::string describe(const char* name, const std::optional<StepReport::Pss>& pss) {
  if (!pss) return fmt::format("{} unknown", name);
  return fmt::format("{} {} ({} in one rank)", name, format_bytes(static_cast<std::int64_t>(pss->sum)),
                     format_bytes(static_cast<std::int64_t>(pss->rank_max)));
}

}  // namespace

std::string to_json(const StepReport& r) {
  const Json json = {{"program", "bench_step"},
                     {"preset", r.preset},
                     {"layers", r.layers},
                     {"width", r.width},
                     {"parameters", r.parameters},
                     {"dtype", r.dtype},
                     {"reduce_dtype", r.reduce_dtype},
                     {"ranks", r.ranks},
                     {"threads", r.threads},
                     {"device", r.gpu.empty() ? "cpu" : "cuda"},
                     {"gpu", r.gpu.empty() ? Json() : Json(r.gpu)},
                     {"isa", r.isa},
                     {"ranks_a_gpu", r.gpu.empty() ? Json() : Json(r.ranks_a_gpu)},
                     {"transport", r.transport},
                     {"micro_batch", r.micro_batch},
                     {"micro_batches", r.micro_batches},
                     {"sequence", r.sequence},
                     {"steps", r.steps},
                     {"loss", r.loss},
                     {"tokens_per_s", r.tokens_per_s()},
                     {"step_ms", r.step_ms},
                     {"step_ms_min", r.step_ms_min},
                     {"flops_per_token", r.flops_per_token},
                     {"gflops", r.gflops()},
                     {"product_ceiling_gflops", r.product_ceiling_gflops},
                     {"pct_of_product_ceiling", r.pct_of_product_ceiling()},
                     {"peak_bytes", r.peak_bytes},
                     {"planned_peak_bytes", r.planned_peak_bytes},
                     {"pss_bytes", bytes_or_null(r.pss, &StepReport::Pss::sum)},
                     {"pss_rank_max_bytes", bytes_or_null(r.pss, &StepReport::Pss::rank_max)},
                     {"pss_baseline_bytes", bytes_or_null(r.pss_baseline, &StepReport::Pss::sum)},
                     {"pss_baseline_rank_max_bytes", bytes_or_null(r.pss_baseline, &StepReport::Pss::rank_max)},
                     {"profile", to_object(r.profile)}};
  return json.dump();
}

std::string to_text(const StepReport& r) {
  std::string text = fmt::format(
      "{}: {} parameters in {} layers, {} (reduced in {}), {} ({}){}, {} x {} x {} tokens a rank\n", r.preset,
      format_count(static_cast<double>(r.parameters)), r.layers, r.dtype, r.reduce_dtype, describe_ranks(r), r.isa,
      r.ranks > 1 ? " over " + r.transport : "", r.micro_batches, r.micro_batch, r.sequence);
  text += fmt::format("{:<16}{:.1f} tokens/s: {:.1f} ms, median of {} steps; the fastest {:.1f} ms; loss {:.4f}\n",
                      "step", r.tokens_per_s(), r.step_ms, r.steps, r.step_ms_min, r.loss);
  text += fmt::format("{:<16}{:.1f} of {:.1f} GFLOP/s: {:.1f} % of the product ceiling at {:.3f} GFLOP a token\n",
                      "products", r.gflops(), r.product_ceiling_gflops, r.pct_of_product_ceiling(),
                      r.flops_per_token * 1e-9);
  text += fmt::format("{:<16}counted peak {} a rank, planned {}; {}; {}\n", "memory", format_bytes(r.peak_bytes),
                      format_bytes(r.planned_peak_bytes), describe("PSS", r.pss),
                      describe("before the model", r.pss_baseline));
  return text + describe(r.profile);
}

}  // namespace zs::bench
