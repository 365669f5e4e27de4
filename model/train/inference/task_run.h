#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/world.h"
#include "model/tokenizer/tokenizer.h"
#include "model/train/config/config.h"
#include "model/train/inference/task_scores.h"
#include "model/train/inference/task_tokens.h"
#include "model/train/run_dir/metrics.h"
#include "model/train/session/session.h"

namespace zs {

/// Tasks in tokens, and what a model makes of them. Its ranks share the work: each has other choices and other lines,
/// and all outcomes come to every rank, the same for any number of ranks. One host thread uses it; the tokenizer
/// outlives it.
class TaskRun {
 public:
  /// `ends`: tokens that end a generated text. Error(dataset) and Error(config) of TaskTokens.
  TaskRun(std::vector<Task> tasks, TaskTokens tokens, std::vector<std::int32_t> ends);

  /// Number of tokens that the model sees at most.
  std::int64_t longest() const { return longest_; }
  /// Enqueues each size of micro-batch, for the meta device.
  void enqueue_shapes(Session& session) const;
  /// Called before each round, from 0 on, on every rank: false, on all of them alike, leaves the rest undone; what it
  /// throws on one of them is an error of all.
  using GoesOn = std::function<bool(std::int64_t round)>;
  /// Collective; blocks: 0, or the exit code of all ranks, of which one has printed why.
  int run(Session& session, World& world, const GoesOn& goes_on);
  /// False where the last run has left something undone.
  bool is_whole() const { return is_whole_; }

  const std::vector<Task>& tasks() const { return tasks_; }
  /// Outcomes of the lines of each task.
  const std::vector<std::vector<TaskOutcome>>& outcomes() const { return outcomes_; }
  /// Figures of all tasks, in their order.
  std::vector<TaskMetric> metrics() const;
  /// Note of prompts that are too long for the model; empty where none is.
  std::string note() const;

 private:
  struct Place {
    std::size_t task = 0, line = 0, choice = 0;
  };
  struct Scored {
    Place place;
    ContinuedPrompt prompt;
  };
  struct Generated {
    Place place;
    std::vector<std::int32_t> prompt;
    std::int64_t most = 0;
  };
  void add_task(std::size_t index);
  /// Number of micro-batches of choices of so many rows, and the inputs of a row of one.
  std::int64_t batches(std::int64_t rows) const { return (std::ssize(scored_) + rows - 1) / rows; }
  std::int64_t length(std::int64_t batch, const Config& config) const;
  /// Collective: 0, or the exit code; is_whole_ says whether the round may begin.
  int begin_round(World& world, const GoesOn& goes_on, std::int64_t round);
  int score(Session& session, World& world, const GoesOn& goes_on);
  int generate(Session& session, World& world, const GoesOn& goes_on);
  /// Text that follows a prompt; all ranks take part, those without one too. `problem`: why there is none.
  std::string generate(Session& session, World& world, const Generated* own, std::string& problem) const;
  bool has_ended(const TaskLine& line, const std::vector<std::int32_t>& drawn) const;

  std::vector<Task> tasks_;
  TaskTokens tokens_;
  std::vector<std::int32_t> ends_;
  std::int64_t longest_ = 1;
  std::vector<Scored> scored_;  // the longest first
  std::vector<Generated> generated_;
  std::vector<std::vector<TaskOutcome>> outcomes_;
  bool is_whole_ = false;
};

/// Tasks of these files for a model of this configuration. Error(dataset) and Error(config); `tokenizer`: null for
/// bytes.
TaskRun open_tasks(const Config& config, const std::vector<std::string>& files, const Tokenizer* tokenizer);

/// Collective: 0, or 72 where ranks have other tasks than the first. `where`: what names the files.
int agree_on_tasks(World& world, const TaskRun& run, const char* where);

}  // namespace zs
