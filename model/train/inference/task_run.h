#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/world.h"
#include "model/train/inference/task_scores.h"
#include "model/train/inference/task_tokens.h"
#include "model/train/session/session.h"

namespace zs {

/// Tasks in tokens, and what a model makes of them. Its ranks share the work: each has other choices and other lines,
/// and all outcomes come to every rank, the same for any number of ranks. One host thread uses it; `tokens` outlives
/// it.
class TaskRun {
 public:
  /// `ends`: tokens that end a generated text. Error(dataset) and Error(config) of TaskTokens.
  TaskRun(std::vector<Task> tasks, TaskTokens& tokens, std::vector<std::int32_t> ends, std::int64_t rows);

  /// Number of tokens that the model sees at most.
  std::int64_t longest() const { return longest_; }
  /// Enqueues each size of micro-batch, for the meta device.
  void enqueue_shapes(Session& session) const;
  /// Collective; blocks: 0, or the exit code of all ranks, of which one has printed why. `begins`: called before each
  /// round, from 0 on; what it throws ends the run on every rank.
  int run(Session& session, World& world, const std::function<void(std::int64_t round)>& begins);

  const std::vector<Task>& tasks() const { return tasks_; }
  /// Outcomes of the lines of each task.
  const std::vector<std::vector<TaskOutcome>>& outcomes() const { return outcomes_; }

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
  void add_task(std::size_t index, TaskTokens& tokens);
  /// Number of micro-batches of choices, and the inputs of a row of one.
  std::int64_t batches() const { return (std::ssize(scored_) + rows_ - 1) / rows_; }
  std::int64_t length(std::int64_t batch) const;
  int score(Session& session, World& world, const std::function<void(std::int64_t)>& begins);
  int generate(Session& session, World& world, const std::function<void(std::int64_t)>& begins);
  /// Text that follows a prompt; all ranks take part, those without one too. `problem`: why there is none.
  std::string generate(Session& session, World& world, const Generated* own, std::string& problem) const;
  bool has_ended(const TaskLine& line, const std::vector<std::int32_t>& drawn) const;

  std::vector<Task> tasks_;
  const TaskTokens& tokens_;
  std::vector<std::int32_t> ends_;
  std::int64_t rows_, longest_ = 1;
  std::vector<Scored> scored_;  // the longest first
  std::vector<Generated> generated_;
  std::vector<std::vector<TaskOutcome>> outcomes_;
};

}  // namespace zs
