#include "bench/kernels/kernel_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/common/median.h"
#include "model/train/run_dir/metrics.h"
#include "runtime/base/units.h"

namespace zs::bench {
namespace {

using Json = nlohmann::ordered_json;

Json to_object(int threads, const KernelReport::Ceilings& ceilings) {
  Json products = Json::object();
  for (const auto& [dtype, gflops] : ceilings.product_gflops) products[std::string(name_of(dtype))] = gflops;
  return {{"threads", threads},
          {"copy_gb_per_s", ceilings.copy_gb_per_s},
          {"memcpy_gb_per_s", ceilings.memcpy_gb_per_s},
          {"product_gflops", std::move(products)}};
}

Json to_object(const KernelReport& report, const KernelReport::Row& row) {
  return {{"kernel", row.kernel},
          {"shape", row.shape},
          {"dtype", name_of(row.dtype)},
          {"threads", row.threads},
          {"bound", name_of(row.bound)},
          {"bytes", row.bytes},
          {"flops", row.flops},
          {"calls", row.calls},
          {"ms_min", row.ms_min},
          {"ms_median", row.ms_median},
          {"gb_per_s", row.gb_per_s()},
          {"gflops", row.gflops()},
          {"percent", row.bound == Bound::latency ? Json() : Json(report.percent(row))}};
}

std::string line(const KernelReport& report, const KernelReport::Row& row) {
  std::string rate;
  if (row.bound == Bound::memory) rate = fmt::format("{:.1f} GB/s", row.gb_per_s());
  if (row.bound == Bound::products) rate = fmt::format("{:.1f} GFLOP/s", row.gflops());
  const std::string percent = row.bound == Bound::latency ? "" : fmt::format("{:.1f}", report.percent(row));
  return fmt::format("{:<24}{:<46}{:<6}{:>4}{:>18}{:>8}{:>13.4f}{:>13.4f}\n", row.kernel, row.shape, name_of(row.dtype),
                     row.threads, rate, percent, row.ms_min, row.ms_median);
}

}  // namespace

double KernelReport::percent(const Row& row) const {
  const auto found = ceilings.find(row.threads);
  if (found == ceilings.end() || row.bound == Bound::latency) return 0;
  if (row.bound == Bound::memory) return 100 * row.gb_per_s() / found->second.copy_gb_per_s;
  const auto product = found->second.product_gflops.find(row.dtype);
  return product == found->second.product_gflops.end() ? 0 : 100 * row.gflops() / product->second;
}

KernelReport::Row row_of(const KernelCase& kernel_case, int threads, std::int64_t calls,
                         const std::vector<double>& ms) {
  return {.kernel = kernel_case.kernel,
          .shape = kernel_case.shape,
          .dtype = kernel_case.dtype,
          .bound = kernel_case.bound,
          .threads = threads,
          .bytes = kernel_case.bytes,
          .flops = kernel_case.flops,
          .calls = calls,
          .ms_min = *std::min_element(ms.begin(), ms.end()),
          .ms_median = median(ms)};
}

std::string to_json(const KernelReport& report) {
  Json ceilings = Json::array(), rows = Json::array();
  for (const auto& [threads, values] : report.ceilings) ceilings.push_back(to_object(threads, values));
  for (const auto& row : report.rows) rows.push_back(to_object(report, row));
  const Json json = {{"program", "bench_kernels"},
                     {"device", report.gpu.empty() ? "cpu" : "cuda"},
                     {"gpu", report.gpu.empty() ? Json() : Json(report.gpu)},
                     {"isa", report.isa},
                     {"last_level_cache_bytes", report.cache_bytes},
                     {"ceilings", std::move(ceilings)},
                     {"kernels", std::move(rows)}};
  return json.dump();
}

std::string to_text(const KernelReport& report) {
  const bool is_gpu = !report.gpu.empty();
  const std::string machine = is_gpu ? fmt::format("{} ({}), L2", report.gpu, report.isa) : report.isa + ", last-level";
  std::string text = fmt::format("{} cache {}\n", machine, format_bytes(report.cache_bytes));
  for (const auto& [threads, ceilings] : report.ceilings) {
    text += is_gpu ? "ceilings of the GPU:" : fmt::format("ceilings of {} thread{}:", threads, threads == 1 ? "" : "s");
    if (ceilings.copy_gb_per_s > 0)
      text += fmt::format(" copy {:.1f} GB/s ({} {:.1f})", ceilings.copy_gb_per_s, is_gpu ? "the driver's" : "memcpy",
                          ceilings.memcpy_gb_per_s);
    for (const auto& [dtype, gflops] : ceilings.product_gflops)
      text += fmt::format(" {} products {:.1f} GFLOP/s", name_of(dtype), gflops);
    text += "\n";
  }
  text += fmt::format("\n{:<24}{:<46}{:<6}{:>4}{:>18}{:>8}{:>13}{:>13}\n", "kernel", "shape", "dtype", "thr", "rate",
                      "%", "fastest ms", "median ms");
  for (const auto& row : report.rows) text += line(report, row);
  return text;
}

}  // namespace zs::bench
