#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/train/report/series.h"
#include "model/train/run_dir/metrics.h"

namespace zs {

/// State that a run is in, or in which it ended.
enum class RunState : std::uint8_t { running, finished, stopped, failed, broken_off };
const char* name_of(RunState state);

/// Record of a run that a report shows: its numbers, thinned out, and what else is known. A value.
struct RunRecord {
  std::string name = {}, config_toml = {};
  std::int64_t planned_steps = 0;
  Series loss = {}, validation = {}, lr = {}, grad_norm = {}, tokens_per_s = {}, peak_bytes = {}, host_bytes = {},
         data_wait_ms = {};
  Series lost_masters = {}, lost_copies = {};                       ///< shares of all groups together
  Series load_max = {}, load_min = {}, load_entropy = {};           ///< the worst of all mixtures
  Series balance_loss = {};                                         ///< mean of all mixtures
  std::map<std::string, std::map<std::string, Series>> tasks = {};  ///< metrics of each task
  std::optional<StepMetrics> last = {};                             ///< step
  std::int64_t best_step = -1;                                      ///< best validation's; -1: none
  float best_validation = 0, last_validation = 0;
  std::int64_t largest_norm_step = 0;        ///< step of the largest gradient norm, or the first not finite; 0: none
  float largest_norm = -1;                   ///< its norm
  double train_s = 0;                        ///< in steps
  double data_wait_s = 0;                    ///< part of that spent waiting for samples
  std::int64_t waiting_steps = 0;            ///< steps that had to wait for these
  std::vector<LostShare> lost_updates = {};  ///< the latest
  std::map<std::string, std::int64_t> kinds = {};  ///< bytes of each kind of memory, at a step's peak
  RunState state = RunState::running;
  std::string detail = {};                       ///< words about the state
  std::vector<std::int64_t> damaged_lines = {};  ///< lines of metrics.jsonl, from 1

  void add(const StepMetrics& metrics);
  void add_validation(const StepMetrics& metrics);

 private:
  void add_mixtures(std::int64_t step, const std::vector<MixtureLoad>& mixtures);
  void add_lost_updates(std::int64_t step, const std::vector<LostShare>& shares);
};

/// Adds the lines of metrics.jsonl; a last line that is not whole yet is none. What is not a log's line, or does not go
/// on from the one before, is a damaged line and counts as none. Error(dataset) where the file cannot be read, or has
/// lines that no log has (ReaderLimits).
void read_metrics(const std::string& path, RunRecord& record);
/// Visits the steps of these lines instead.
void read_metrics(const std::string& path, const std::function<void(const StepMetrics&)>& visit,
                  std::vector<std::int64_t>& damaged_lines);

/// Reads the record of the run in `dir`, as far as its files say; they may be written at the same time. Error(dataset)
/// where there is no run.
RunRecord read_run(const std::string& dir);

}  // namespace zs
