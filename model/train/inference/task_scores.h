#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/train/inference/task_file.h"

namespace zs {

/// Outcome of a line.
struct TaskOutcome {
  std::vector<double> log_probs = {};  ///< sums over the tokens of each choice, in nats; none: text was generated
  std::string text = {};               ///< that text
};

/// Figure of a task.
struct TaskFigure {
  std::string metric;             ///< "acc", "acc_norm" or "exact_match"
  double value = 0;               ///< mean over the lines, from 0 to 1
  std::optional<double> stderr_;  ///< standard error; none of a single line
};

/// Index of the largest; the first of those that are as large, as of numpy.argmax.
std::size_t choice_of(const std::vector<double>& values);
/// The values by the characters (code points) of their choices.
std::vector<double> by_length(std::vector<double> log_probs, const std::vector<std::string>& choices);
/// The text before each of `until`, one after the other.
std::string cut_at(std::string text, const std::vector<std::string>& until);

/// True if the line is answered rightly by `metric`.
bool is_right(const TaskLine& line, const TaskOutcome& outcome, std::string_view metric);

/// Figures of a task as lm-evaluation-harness counts them (lm_eval 0.4, api/task.py and api/metrics.py). Standard
/// error: sqrt(sum((x - mean)^2) / (n - 1)) / sqrt(n).
std::vector<TaskFigure> task_figures(const Task& task, const std::vector<TaskOutcome>& outcomes);

/// Lines of a table, a row for each figure.
std::string figures_table(const std::vector<Task>& tasks, const std::vector<std::vector<TaskOutcome>>& outcomes);
/// An outcome as a JSON object, a line.
std::string outcome_line(const Task& task, std::size_t line, const TaskOutcome& outcome);

}  // namespace zs
