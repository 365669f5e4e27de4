#include "bench/collectives/collective_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "model/train/run_dir/metrics.h"
#include "runtime/base/units.h"

namespace zs::bench {

using Json = nlohmann::ordered_json;

const char* name_of(Collective op) {
  switch (op) {
    case Collective::all_gather: return "all_gather";
    case Collective::reduce_scatter: return "reduce_scatter";
    case Collective::all_reduce: return "all_reduce";
    case Collective::all_to_all: return "all_to_all";
    case Collective::broadcast: return "broadcast";
  }
  return "?";
}

double bus_bytes(Collective op, double bytes, int ranks) {
  const double others = (ranks - 1) / static_cast<double>(ranks);
  switch (op) {
    case Collective::all_reduce: return 2 * others * bytes;
    case Collective::broadcast: return bytes;
    default: return others * bytes;
  }
}

double touched_bytes(Collective op, double bytes, int ranks) {
  switch (op) {
    case Collective::all_gather:
    case Collective::broadcast: return 2 * bytes * (ranks - 1);  // a rank's own part is there already
    case Collective::reduce_scatter: return bytes * ranks + bytes;
    case Collective::all_reduce:
    case Collective::all_to_all: return 2 * bytes * ranks;
  }
  return 0;
}

double CollectiveReport::percent(const Row& row) const {
  const double gb_per_s = touched_bytes(row.op, static_cast<double>(row.bytes), ranks) / (row.time_us * 1e3);
  return copy_gb_per_s > 0 ? 100 * gb_per_s / copy_gb_per_s : 0;
}

std::int64_t CollectiveReport::wrong() const {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0},
                         [](std::int64_t sum, const Row& row) { return sum + row.wrong; });
}

std::string to_json(const CollectiveReport& report) {
  Json rows = Json::array();
  for (const auto& row : report.rows) {
    rows.push_back({{"op", name_of(row.op)},
                    {"bytes", row.bytes},
                    {"dtype", name_of(row.dtype)},
                    {"transport", row.transport},
                    {"time_us", row.time_us},
                    {"time_us_min", row.time_us_min},
                    {"algbw_gbs", report.algbw_gbs(row)},
                    {"busbw_gbs", report.busbw_gbs(row)},
                    {"pct_of_copy_ceiling", report.percent(row)},
                    {"sets", row.sets},
                    {"calls", row.calls},
                    {"wrong", row.wrong}});
  }
  const Json json = {{"program", "bench_collectives"},
                     {"device", report.gpu.empty() ? "cpu" : "cuda"},
                     {"gpu", report.gpu.empty() ? Json() : Json(report.gpu)},
                     {"ranks", report.ranks},
                     {"ranks_a_gpu", report.gpu.empty() ? Json() : Json(report.ranks_a_gpu)},
                     {"last_level_cache_bytes", report.cache_bytes},
                     {"copy_gb_per_s", report.copy_gb_per_s},
                     {"collectives", std::move(rows)}};
  return json.dump();
}

std::string to_text(const CollectiveReport& report) {
  const std::string gpus =
      report.gpu.empty() ? "" : fmt::format(", up to {} on one {}", report.ranks_a_gpu, report.gpu);
  std::string text = fmt::format(
      "{} ranks{}, last-level cache {}, copy by all ranks {:.1f} GB/s\n\n{:<16}{:>12}  "
      "{:<6}{:<10}{:>12}{:>12}{:>10}{:>10}{:>8}{:>6}\n",
      report.ranks, gpus, format_bytes(report.cache_bytes), report.copy_gb_per_s, "collective", "bytes", "dtype",
      "transport", "median us", "fastest us", "algbw", "busbw", "% copy", "wrong");
  for (const auto& row : report.rows) {
    text += fmt::format("{:<16}{:>12}  {:<6}{:<10}{:>12.1f}{:>12.1f}{:>10.2f}{:>10.2f}{:>8.1f}{:>6}\n", name_of(row.op),
                        row.bytes, name_of(row.dtype), row.transport, row.time_us, row.time_us_min,
                        report.algbw_gbs(row), report.busbw_gbs(row), report.percent(row), row.wrong);
  }
  return text;
}

}  // namespace zs::bench
