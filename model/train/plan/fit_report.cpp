// Text of what was found: the table, and the file of the chosen setting.

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>

#include "model/data/output_file.h"
#include "model/train/plan/fit.h"
#include "runtime/base/file.h"
#include "runtime/base/random.h"
#include "runtime/base/reader_limits.h"
#include "runtime/base/units.h"

namespace zs {
namespace {

constexpr std::string_view kMark = "# Written by fit, ";

/// "moments, gradients but of 3 units", "weights, moments (disk)"
std::string kept_elsewhere(const Config::Offload& offload) {
  std::string text;
  for (const auto& [name, place] :
       {std::pair("weights", &offload.weights), std::pair("gradients", &offload.gradients),
        std::pair("accumulator", &offload.accumulator), std::pair("moments", &offload.moments),
        std::pair("activations", &offload.activations)})
    if (*place != "device")
      text += fmt::format("{}{}{}", text.empty() ? "" : ", ", name, *place == "host" ? "" : " (disk)");
  if (const std::int64_t units = offload.resident_units.value; units > 0 && offload.has_any_of_units())
    text += fmt::format(" but of {}", format_number(units, "unit"));
  return text.empty() ? "-" : text;
}

/// The first line: it ends with the hash of what follows, which tells whether somebody has changed that.
std::string mark_of(const std::string& about, std::string_view content) {
  return fmt::format("{}{}; of what follows: {:016x}\n", kMark, about, hash_name(content));
}

bool is_own(const std::string& path) {
  const File file = File::open(path, O_RDONLY | O_NOFOLLOW);
  if (!file.is_regular() || file.bytes() > static_cast<std::int64_t>(ReaderLimits::kTomlBytes)) return false;
  std::string text(static_cast<std::size_t>(file.bytes()), '\0');
  text.resize(file.read_at(0, text.data(), text.size()).bytes);
  const std::size_t end = text.find('\n');
  if (!text.starts_with(kMark) || end == text.npos) return false;
  return std::string_view(text).substr(0, end).ends_with(fmt::format("{:016x}", hash_name(text.substr(end + 1))));
}

}  // namespace

std::string describe(const std::vector<FitRow>& rows, std::size_t chosen, const FitRequest& request) {
  std::string text =
      fmt::format("what fits, largest first: train.global_batch {} over {}\n", request.demand.config.train.global_batch,
                  format_number(request.demand.plan.ranks, "rank"));
  std::vector<std::string> kept;
  std::size_t width = 29;
  for (const FitRow& row : rows)
    width = std::max(width, kept.emplace_back(kept_elsewhere(row.demand.config.offload)).size() + 1);
  constexpr const char* kFormat = "{:<2}{:>11}{:>10}  {:<11}{:<15}{:<{}}{:>14}{:>14}{:>14}{:>8}\n";
  text += fmt::format(kFormat, "", "micro-batch", "sequence", "recompute", "strategy", "kept by the host", width,
                      "peak_bytes", "device", "host", "limit");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const FitRow& row = rows[i];
    const Config& config = row.demand.config;
    text +=
        fmt::format(kFormat, i == chosen ? "*" : "", config.train.micro_batch, config.train.sequence,
                    fmt::format("{}", fmt::join(config.train.recompute, ", ")), config.shard.strategy, kept[i], width,
                    row.peak_bytes, row.bytes.device, row.bytes.host, fmt::format("{:.0f} %", 100 * row.share));
  }
  text += describe_budgets(rows[chosen].demand, rows[chosen].bytes, request.budgets);
  return text + "chosen (*): " + describe_choice(rows[chosen]);
}

std::string describe_choice(const FitRow& row) {
  return row.changes.empty() ? "as configured\n" : fmt::format("set {}\n", fmt::join(row.changes, ", "));
}

void check_fit_file(const std::string& path, const std::string& config_path) {
  check_output(path, {.is_own = is_own, .reads = {config_path}});
}

void write_fit(const std::string& path, const FitRow& row, const std::string& toml) {
  const std::string about = fmt::format("for {}: {} bytes of the device and {} of the host each",
                                        format_number(row.demand.plan.ranks, "rank"), row.bytes.device, row.bytes.host);
  OutputFile file(path, OutputRule{.is_own = is_own});
  const std::string text = mark_of(about, toml) + toml;
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace zs
