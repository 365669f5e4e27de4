#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/train/session/router_records.h"
#include "runtime/base/file.h"
#include "runtime/shard/optimizers/lost_updates.h"

namespace zs {

/// Figure of a task of run.evaluate.
struct TaskMetric {
  std::string task, metric;
  double value = 0;
  bool operator==(const TaskMetric&) const = default;
};

/// One line of metrics.jsonl.
struct StepMetrics {
  std::int64_t step = 0;
  float loss = 0, grad_norm = 0;
  double lr = 0;
  std::int64_t tokens = 0;  ///< tokens of all steps so far, over all ranks
  double tokens_per_s = 0, step_ms = 0;
  std::int64_t peak_bytes = 0;   ///< maximum over ranks
  std::int64_t allocations = 0;  ///< calls to the system for counted memory since the last line, maximum over ranks
  std::optional<float> val_loss = {};
  double data_wait_ms = 0;         ///< for samples that had not been read in time, the longest of a rank
  std::int64_t skipped_steps = 0;  ///< so far in this run: the gradient was not finite, or no token of the batch a
                                   ///< target, and the weights stayed as they were
  std::map<std::string, std::int64_t> peak_by_kind = {};  ///< parts of rank 0's peak; empty: as before
  std::int64_t host_bytes = 0;  ///< maximum over ranks; 0: the host keeps nothing of the device's
  /// Means of pairs: rewards, and how often the chosen one's is above.
  struct Rewards {
    float chosen = 0, rejected = 0, accuracy = 0;
  };
  std::optional<Rewards> rewards = {};
  std::vector<LostShare> lost_updates = {};  ///< lost updates of groups of parameters, in the steps that were metered
  std::vector<MixtureLoad> mixtures = {};    ///< in the order of the layers
  std::vector<TaskMetric> tasks = {};        ///< "task/NAME/METRIC" in the file
  std::size_t bytes_to_come = 0;             ///< bytes that a validation which has been cut short will add to the line

  bool is_validated() const { return val_loss || !tasks.empty(); }
};

/// Bytes that these take in a line.
std::size_t json_bytes(const std::vector<TaskMetric>& tasks);

/// One JSON object without a line end. Numbers are the shortest text that reads back as the same float or double; a
/// value that is not finite is null; host_bytes, val_loss, tasks, rewards, data_wait_ms, skipped_steps, peak_by_kind,
/// experts and lost_updates appear only when there are any, of the last two as many as a line has room for.
std::string to_json(const StepMetrics& metrics);

/// Appends to metrics.jsonl, one write a line, so that a reader sees whole lines. Owns the descriptor, and with it a
/// lock that makes the run directory its own until the process ends, however it ends; one thread uses it. Throws
/// Error(cannot_create) when the file cannot be opened, is no regular file, or another run has it, and Error(io) when a
/// write fails. Follows no link.
class MetricsLog {
 public:
  explicit MetricsLog(std::string path);

  void append(const StepMetrics& metrics);
  /// Throws Error(cannot_create) when the file holds a line that no log has written: it is somebody else's, and nothing
  /// of it may be cut.
  void check_own() const;
  /// Drops every line after step `step`, a line that is cut off included, and returns the step of the last one left (0:
  /// none). Checks first that all of it is a log's.
  std::int64_t cut_after(std::int64_t step);
  /// The validations up to a step, by step.
  struct Validation {
    std::int64_t step;
    float loss;  ///< NaN where it was not finite
  };
  std::vector<Validation> validations(std::int64_t last) const;
  /// True if the last line is that of `step`, and has neither a val_loss nor tasks.
  bool lacks_validation(std::int64_t step) const;
  /// Gives it those of `metrics`.
  void add_validation(const StepMetrics& metrics);
  /// Makes the lines so far durable.
  void sync();

 private:
  struct Found {
    std::int64_t step, end;  // the last step up to the one asked for, and where its line ends
  };
  void check(const char* operation, int error) const;
  void write(const std::string& text);
  std::string last_line() const;
  /// `each`, if any, is called for each line up to there.
  using UseLine = std::function<void(std::int64_t step, std::string_view line)>;
  Found find(std::int64_t step, const UseLine& each = {}) const;
  bool is_lost(std::int64_t from) const;

  std::string path_;
  File file_;
};

/// True if it is a regular file that begins as a log of metrics does, or is empty.
bool begins_as_metrics(const std::string& path);

/// True if a MetricsLog of any process has the file.
bool is_in_use(const std::string& metrics_path);

/// Progress of a step that the terminal shows.
struct Progress {
  StepMetrics metrics;
  std::int64_t steps = 0;                      ///< steps of the whole run
  double seconds_left = 0;                     ///< negative: not known yet
  std::optional<double> ceiling_percent = {};  ///< rate as a percentage of the machine's measured matrix-product rate
};

/// "step 20/500  loss 2.4310  9.8k tok/s  31% of ceiling  peak 112 MiB  3:05 left".
std::string progress_line(const Progress& progress);
/// "step 20/500  books acc 0.2222, acc_norm 0.1944; plurals exact_match 0.5000".
std::string tasks_line(const StepMetrics& metrics, std::int64_t steps);
/// Progress as one line that replaces the last on a terminal of `columns` columns.
std::string live_line(const Progress& progress, int columns);

}  // namespace zs
