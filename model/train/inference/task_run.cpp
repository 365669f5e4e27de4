#include "model/train/inference/task_run.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "model/train/rank/agreed.h"
#include "model/train/session/pair_training.h"
#include "model/train/session/sample.h"
#include "model/train/session/token_window.h"
#include "model/weights/end_tokens.h"
#include "runtime/tensor/autograd.h"

namespace zs {
namespace {

/// Sums of log-probabilities of the rows of a micro-batch of each rank.
class RowScores {
 public:
  RowScores(Session& session, std::int64_t rows, std::int64_t length)
      : session_(session),
        length_(length),
        inputs_(static_cast<std::size_t>(rows * length)),
        targets_(inputs_.size()),
        counted_(inputs_.size()),
        own_(Tensor::empty(context(), {rows}, DType::f32, "scalars")),
        all_(Tensor::empty(context(), {session.runtime().data_share().count * rows}, DType::f32, "scalars")) {}

  void set_row(std::int64_t row, const ContinuedPrompt& prompt) {
    const auto begin = static_cast<std::ptrdiff_t>(row * length_);
    const std::ptrdiff_t inputs = std::ssize(prompt.tokens) - 1;
    std::copy_n(prompt.tokens.begin(), inputs, inputs_.begin() + begin);
    std::copy_n(prompt.tokens.begin() + 1, inputs, targets_.begin() + begin);
    std::fill_n(counted_.begin() + begin + inputs - prompt.targets, prompt.targets, 1.0f);
  }
  void enqueue() {
    const NoGradGuard no_grad(context());
    ShardedRuntime& runtime = session_.runtime();
    const Shape shape{own_.shape()[0], length_};
    const Tensor inputs = Tensor::from_host(context(), shape, inputs_);
    const Tensor targets = Tensor::from_host(context(), shape, targets_);
    const Tensor counted = Tensor::from_host(context(), shape, counted_);
    runtime.begin_micro_batch(Mode::eval, true);
    const std::vector<Tensor> sums =
        session_.model().row_losses(inputs, targets, counted, {.chunk = session_.config().train.loss_chunk});
    for (std::size_t row = 0; row < sums.size(); ++row)
      store_loss(context(), sums[row], own_.buffer().slice(static_cast<std::int64_t>(row), 1));
    runtime.end_micro_batch();
    runtime.executor().loss_comm().all_gather(context().stream(), "log_probs", own_.buffer(), all_.buffer());
  }
  /// Row by row, in the order of the ranks' shares. Waits for the device.
  std::vector<float> losses() const { return all_.to_host(); }

 private:
  Context& context() const { return session_.runtime().context(); }

  Session& session_;
  std::int64_t length_;
  std::vector<std::int32_t> inputs_, targets_;  // (rows, length), as below
  std::vector<float> counted_;
  Tensor own_, all_;  // (rows), (shares * rows)
};

}  // namespace

TaskRun::TaskRun(std::vector<Task> tasks, TaskTokens tokens, std::vector<std::int32_t> ends)
    : tasks_(std::move(tasks)), tokens_(std::move(tokens)), ends_(std::move(ends)) {
  for (std::size_t i = 0; i < tasks_.size(); ++i) add_task(i);
  std::stable_sort(scored_.begin(), scored_.end(),
                   [](const Scored& a, const Scored& b) { return a.prompt.tokens.size() > b.prompt.tokens.size(); });
}

void TaskRun::add_task(std::size_t index) {
  const Task& task = tasks_[index];
  outcomes_.emplace_back(task.lines.size());
  for (std::size_t line = 0; line < task.lines.size(); ++line) {
    const TaskLine& asked = task.lines[line];
    for (std::size_t choice = 0; choice < asked.choices.size(); ++choice) {
      scored_.push_back({{index, line, choice}, tokens_.choice(asked, choice)});
      longest_ = std::max<std::int64_t>(longest_, std::ssize(scored_.back().prompt.tokens) - 1);
    }
    outcomes_.back()[line].log_probs.resize(asked.choices.size());
    if (!asked.choices.empty()) continue;
    generated_.push_back({{index, line, 0}, tokens_.prompt(asked), tokens_.most_generated(asked)});
    longest_ = std::max<std::int64_t>(longest_, std::ssize(generated_.back().prompt) + generated_.back().most);
  }
}

/// Configurations that are planned may have a shorter sequence than the one that the tokens were made for.
std::int64_t TaskRun::length(std::int64_t batch, const Config& config) const {
  constexpr std::int64_t kMultiple = 64;  // few sizes of buffers occur
  const auto first = static_cast<std::size_t>(batch * config.train.micro_batch);
  const std::int64_t inputs = std::ssize(scored_[first].prompt.tokens) - 1;
  return std::min({longest_, config.train.sequence, (inputs + kMultiple - 1) / kMultiple * kMultiple});
}

void TaskRun::enqueue_shapes(Session& session) const {
  const std::int64_t rows = session.config().train.micro_batch;
  for (std::int64_t i = 0; i < batches(rows); ++i) {
    if (i > 0 && length(i, session.config()) == length(i - 1, session.config())) continue;
    for (int twice = 0; twice < 2; ++twice) RowScores(session, rows, length(i, session.config())).enqueue();
  }
  if (!generated_.empty()) TokenWindow::enqueue_longest(session);
}

int TaskRun::begin_round(World& world, const GoesOn& goes_on, std::int64_t round) {
  return agreed(world, [&] { is_whole_ = goes_on(round); });
}

int TaskRun::score(Session& session, World& world, const GoesOn& goes_on) {
  const std::int64_t rows = session.config().train.micro_batch;
  const DataShare share = session.runtime().data_share();
  for (std::int64_t first = 0; first < batches(rows); first += share.count) {
    if (const int code = begin_round(world, goes_on, first / share.count); code != 0 || !is_whole_) return code;
    // A rank that has none left takes part with tokens that do not count.
    const std::int64_t own = first + share.index;
    RowScores scores(session, rows, length(std::min(own, batches(rows) - 1), session.config()));
    for (std::int64_t i = own * rows; i < std::min((own + 1) * rows, std::ssize(scored_)); ++i)
      scores.set_row(i - own * rows, scored_[static_cast<std::size_t>(i)].prompt);
    scores.enqueue();
    const std::vector<float> losses = scores.losses();
    const std::int64_t begin = first * rows, end = std::min(begin + std::ssize(losses), std::ssize(scored_));
    for (std::int64_t i = begin; i < end; ++i) {
      const Place& at = scored_[static_cast<std::size_t>(i)].place;
      outcomes_[at.task][at.line].log_probs[at.choice] =
          -static_cast<double>(losses[static_cast<std::size_t>(i - begin)]);
    }
    const bool are_finite = std::all_of(losses.begin(), losses.end(), [](float x) { return std::isfinite(x); });
    const auto check = [&] {
      if (!are_finite) throw Error(ExitCode::non_finite, "a log-probability is not finite", "", "look at the weights");
    };
    if (const int code = agreed(world, check); code != 0) return code;
  }
  return 0;
}

bool TaskRun::has_ended(const TaskLine& line, const std::vector<std::int32_t>& drawn) const {
  if (std::find(ends_.begin(), ends_.end(), drawn.back()) != ends_.end()) return true;
  const std::string text = tokens_.text(drawn);
  return std::any_of(line.until.begin(), line.until.end(),
                     [&](const std::string& end) { return text.find(end) != text.npos; });
}

std::string TaskRun::generate(Session& session, World& world, const Generated* own, std::string& problem) const {
  TokenWindow window(session);
  const TaskLine* const line = own != nullptr ? &tasks_[own->place.task].lines[own->place.line] : nullptr;
  std::vector<std::int32_t> drawn, seen = own != nullptr ? own->prompt : std::vector<std::int32_t>{0};
  bool is_done = own == nullptr;
  while (world.agree(is_done ? 0 : 1, "").code != 0) {
    const std::vector<float> logits = window.next_logits(seen);
    if (is_done) continue;
    try {
      drawn.push_back(draw_token(logits, {.temperature = 0}, 0));
      seen = {drawn.back()};
      is_done = std::ssize(drawn) == own->most || has_ended(*line, drawn);
    } catch (const Error& error) {  // the others are in the midst of their texts, and learn of it after that
      problem = error.what_happened();
      is_done = true;
    }
  }
  if (drawn.empty()) return "";
  if (std::find(ends_.begin(), ends_.end(), drawn.back()) != ends_.end()) drawn.pop_back();
  return cut_at(tokens_.text(drawn), line->until);
}

int TaskRun::generate(Session& session, World& world, const GoesOn& goes_on) {
  const DataShare share = session.runtime().data_share();
  for (std::int64_t first = 0; first < std::ssize(generated_); first += share.count) {
    if (const int code = begin_round(world, goes_on, first / share.count); code != 0 || !is_whole_) return code;
    const std::int64_t own = first + share.index;
    std::string problem;
    const bool has_own = own < std::ssize(generated_);
    const std::string text =
        generate(session, world, has_own ? &generated_[static_cast<std::size_t>(own)] : nullptr, problem);
    const auto check = [&] {
      if (!problem.empty()) throw Error(ExitCode::non_finite, problem, "", "look at the weights");
    };
    if (const int code = agreed(world, check); code != 0) return code;
    for (std::int64_t i = first; i < std::min(first + share.count, std::ssize(generated_)); ++i) {
      const Place& at = generated_[static_cast<std::size_t>(i)].place;
      outcomes_[at.task][at.line].text = from_owner(world, i == own, text);
    }
  }
  return 0;
}

int TaskRun::run(Session& session, World& world, const GoesOn& goes_on) {
  is_whole_ = true;
  if (const int code = score(session, world, goes_on); code != 0 || !is_whole_) return code;
  return generate(session, world, goes_on);
}

std::vector<TaskMetric> TaskRun::metrics() const {
  std::vector<TaskMetric> metrics;
  for (std::size_t i = 0; i < tasks_.size(); ++i)
    for (const TaskFigure& figure : task_figures(tasks_[i], outcomes_[i]))
      metrics.push_back({tasks_[i].name, figure.metric, figure.value});
  return metrics;
}

std::string TaskRun::note() const {
  return tokens_.truncated() == 0
             ? ""
             : fmt::format(
                   "{} prompts are longer than the model sees with what follows them, and lose their beginning "
                   "(train.sequence = {})",
                   tokens_.truncated(), tokens_.sequence());
}

TaskRun open_tasks(const Config& config, const std::vector<std::string>& files, const Tokenizer* tokenizer) {
  std::vector<Task> tasks;
  for (const std::string& file : files) tasks.push_back(read_task(file));
  std::vector<std::int32_t> ends;
  if (!config.model.path.empty()) ends = end_tokens_of(config.model.path);
  if (tokenizer != nullptr && tokenizer->end_of_text()) ends.push_back(*tokenizer->end_of_text());
  return {std::move(tasks), TaskTokens(config, tokenizer), std::move(ends)};
}

int agree_on_tasks(World& world, const TaskRun& run, const char* where) {
  std::vector<std::uint64_t> digests;
  for (const Task& task : run.tasks()) digests.push_back(task.digest);
  const std::string own = fmt::format("digest {:016x}", fmt::join(digests, ", "));
  const std::string first = from_first(world, own);
  return agreed(world, [&] {
    if (own != first)
      throw Error(ExitCode::ranks_disagree, "the ranks differ: this one's tasks are others than rank 0's", where,
                  "give every rank the same files");
  });
}

}  // namespace zs
