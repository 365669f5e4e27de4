#include "model/train/plan/memory_budget.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/train/rank/disk_space.h"
#include "runtime/base/units.h"

namespace zs {
namespace {

/// Libraries, the corpus in the page cache and the rest of the system need some too; a machine at its limit only
/// thrashes.
constexpr double kUsable = 0.9;

}  // namespace

std::vector<MemoryBudget> memory_budgets(const std::vector<MemoryLimit>& limits, int threads) {
  std::vector<MemoryBudget> budgets;
  for (const MemoryLimit& limit : limits) {
    const std::int64_t program = limit.used_bytes + threads * limit.thread_bytes;
    const auto usable = static_cast<std::int64_t>(kUsable * static_cast<double>(limit.bytes)) - program;
    const std::string rest = program == 0 ? "" : fmt::format(" less {} of the program's own", format_bytes(program));
    budgets.push_back({std::max<std::int64_t>(usable, 0), limit.is_per_process,
                       fmt::format("90 % of {}, {},{}", limit.source, format_bytes(limit.bytes), rest)});
    if (budgets.back().source.ends_with(',')) budgets.back().source.pop_back();
  }
  return budgets;
}

void add_offload_budgets(const Config& config, std::vector<MemoryBudget>& budgets) {
  const auto add = [&](const char* key, std::int64_t mib, MemoryBudget::Of of) {
    if (mib > 0) budgets.push_back({mib << 20, true, fmt::format("{} = {}", key, mib), of, true});
  };
  add("offload.device_mib", config.offload.device_mib, MemoryBudget::Of::device);
  add("offload.host_mib", config.offload.host_mib, MemoryBudget::Of::host);
}

void add_disk_budgets(const Config& config, std::vector<MemoryBudget>& budgets) {
  for (const std::string& folder : config.offload.disk_folders()) {
    if (is_in_memory(folder))
      throw Error(ExitCode::config, "offload: the folder is in memory, not on a disk", folder,
                  "name a folder of a disk, or use \"host\"");
    if (const auto free = free_bytes_at(folder))
      budgets.push_back({*free, false, "free at " + folder, MemoryBudget::Of::disk, false, folder});
  }
}

std::int64_t needed_bytes(const MemoryDemand& demand, const RankBytes& rank_bytes, const MemoryBudget& budget) {
  if (budget.of == MemoryBudget::Of::disk) {
    const auto file = rank_bytes.disk.find(budget.folder);
    return file == rank_bytes.disk.end() ? 0 : file->second * demand.local_ranks;
  }
  const std::int64_t bytes = (budget.of == MemoryBudget::Of::host ? 0 : rank_bytes.device) +
                             (budget.of == MemoryBudget::Of::device ? 0 : rank_bytes.host);
  if (budget.is_per_rank) return bytes;
  if (demand.gpus > 0 && budget.of != MemoryBudget::Of::host)
    return bytes * ((demand.local_ranks + demand.gpus - 1) / demand.gpus);
  const bool is_alone = budget.is_per_process && demand.plan.transport != Transport::local;
  return bytes * (is_alone ? 1 : demand.local_ranks);
}

const MemoryBudget* exceeded(const MemoryDemand& demand, const RankBytes& rank_bytes,
                             const std::vector<MemoryBudget>& budgets) {
  const MemoryBudget* worst = nullptr;
  double excess = 1;
  for (const MemoryBudget& budget : budgets) {
    const double part = static_cast<double>(needed_bytes(demand, rank_bytes, budget)) /
                        static_cast<double>(std::max<std::int64_t>(budget.bytes, 1));
    if (part > excess) excess = part, worst = &budget;
  }
  return worst;
}

}  // namespace zs
