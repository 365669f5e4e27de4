#include "model/train/inference/task_scores.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/data/utf8.h"
#include "model/json/strict_json.h"

namespace zs {
namespace {

/// Number of code points of a text in UTF-8.
double characters(std::string_view text) {
  return static_cast<double>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

TaskFigure figure(std::string metric, double right, double count) {
  TaskFigure made{.metric = std::move(metric), .value = right / count, .stderr_ = {}};
  const double squares = right * std::pow(1 - made.value, 2) + (count - right) * std::pow(made.value, 2);
  if (count > 1) made.stderr_ = std::sqrt(squares / (count - 1)) / std::sqrt(count);
  return made;
}

}  // namespace

std::size_t choice_of(const std::vector<double>& values) {
  return static_cast<std::size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

std::vector<double> by_length(std::vector<double> log_probs, const std::vector<std::string>& choices) {
  for (std::size_t i = 0; i < log_probs.size(); ++i) log_probs[i] /= characters(choices[i]);
  return log_probs;
}

std::string cut_at(std::string text, const std::vector<std::string>& until) {
  for (const std::string& end : until) text.resize(std::min(text.find(end), text.size()));
  return text;
}

bool is_right(const TaskLine& line, const TaskOutcome& outcome, std::string_view metric) {
  if (line.choices.empty()) return outcome.text == line.answer;
  return choice_of(metric == "acc" ? outcome.log_probs : by_length(outcome.log_probs, line.choices)) == line.right;
}

std::vector<TaskFigure> task_figures(const Task& task, const std::vector<TaskOutcome>& outcomes) {
  const std::vector<std::string> metrics =
      task.has_choices() ? std::vector<std::string>{"acc", "acc_norm"} : std::vector<std::string>{"exact_match"};
  std::vector<TaskFigure> figures;
  for (const std::string& metric : metrics) {
    double right = 0;
    for (std::size_t i = 0; i < task.lines.size(); ++i) right += is_right(task.lines[i], outcomes[i], metric) ? 1 : 0;
    figures.push_back(figure(metric, right, static_cast<double>(task.lines.size())));
  }
  return figures;
}

std::string figures_table(const std::vector<Task>& tasks, const std::vector<std::vector<TaskOutcome>>& outcomes) {
  std::size_t width = 4;
  for (const Task& task : tasks) width = std::max(width, escaped(task.name).size());
  std::string table =
      fmt::format("{:<{}}  {:>6}  {:<11}  {:>6}  {:>6}\n", "task", width, "lines", "metric", "value", "stderr");
  for (std::size_t i = 0; i < tasks.size(); ++i)
    for (const TaskFigure& one : task_figures(tasks[i], outcomes[i]))
      table +=
          fmt::format("{:<{}}  {:>6}  {:<11}  {:.4f}  {:>6}\n", escaped(tasks[i].name), width, tasks[i].lines.size(),
                      one.metric, one.value, one.stderr_ ? fmt::format("{:.4f}", *one.stderr_) : "none");
  return table;
}

std::string outcome_line(const Task& task, std::size_t line, const TaskOutcome& outcome) {
  const TaskLine& asked = task.lines[line];
  nlohmann::ordered_json made{{"task", task.name}, {"line", line + 1}};
  if (task.has_choices()) {
    made["log_probs"] = outcome.log_probs;
    made["answer"] = asked.right;
    for (const char* const metric : {"acc", "acc_norm"}) made[metric] = is_right(asked, outcome, metric) ? 1 : 0;
  } else {
    made["text"] = outcome.text;
    made["answer"] = asked.answer;
    made["exact_match"] = is_right(asked, outcome, "exact_match") ? 1 : 0;
  }
  return json_text(made, -1) + "\n";
}

}  // namespace zs
