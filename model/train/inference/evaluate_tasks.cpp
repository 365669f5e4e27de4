#include "model/train/inference/evaluate_tasks.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "model/data/output_file.h"
#include "model/train/inference/task_run.h"
#include "model/train/rank/agreed.h"
#include "model/train/rank/print.h"
#include "model/train/rank/stop_signal.h"

namespace zs {
namespace {

void write_outcomes(OutputFile& file, const TaskRun& run) {
  for (std::size_t task = 0; task < run.tasks().size(); ++task)
    for (std::size_t line = 0; line < run.outcomes()[task].size(); ++line) {
      const std::string text = outcome_line(run.tasks()[task], line, run.outcomes()[task][line]);
      file.write(text.data(), text.size());
    }
  file.commit();
}

}  // namespace

bool are_tasks(const Config& config, const EvaluateRequest& request) {
  const std::string field = config.data.format == "jsonl" ? config.data.field : "";
  const auto tasks = std::count_if(request.files.begin(), request.files.end(),
                                   [&](const std::string& file) { return is_task_file(file, field); });
  if (tasks > 0 && tasks < std::ssize(request.files))
    throw Error(ExitCode::usage, "some of the files are tasks, and some are data", "FILE...",
                "evaluate them one after the other");
  if (tasks > 0 && !request.logits.empty())
    throw Error(ExitCode::usage, "--logits are of a text, and the files are tasks", "--logits",
                "leave it out; --out writes what each line came to");
  if (tasks == 0 && !request.out.empty())
    throw Error(ExitCode::usage, "--out is of tasks, and there are none", "--out",
                "leave it out, or name files of tasks (docs/inference.md)");
  return tasks > 0;
}

int evaluate_tasks(Inference& inference, const EvaluateRequest& request) {
  World& world = inference.world();
  const Config config = inference.config();
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<TaskRun> run;
  std::optional<OutputFile> out;
  const auto prepare = [&] {
    if (!config.data.tokenizer.empty()) tokenizer = open_tokenizer(config.data.tokenizer);
    run.emplace(open_tasks(config, request.files, tokenizer.get()));
    if (inference.is_first() && !request.out.empty()) out.emplace(request.out, OutputRule{});
  };
  if (const int code = agreed(world, prepare); code != 0) return code;
  if (const int code = agree_on_tasks(world, *run, "FILE..."); code != 0) return code;
  if (const std::string note = run->note(); inference.is_first() && !note.empty()) print_note(note);
  inference.limit_sequence(run->longest());
  if (const int code = inference.start([&](Session& session) { run->enqueue_shapes(session); }); code != 0) return code;
  std::int64_t rounds = 0;
  const auto goes_on = [&](std::int64_t) {
    if (is_stop_requested()) throw Error(ExitCode::stopped, "stopped on request", "", "nothing was changed");
    inference.watch().enter(rounds == 0 ? Phase::first_step : Phase::step, rounds + 1);
    ++rounds;
    return true;
  };
  if (const int code = run->run(inference.session(), world, goes_on); code != 0) return code;
  inference.watch().enter(Phase::ending);
  const auto write = [&] {
    if (out) write_outcomes(*out, *run);
  };
  if (const int code = agreed(world, write); code != 0) return code;
  if (inference.is_first()) print_to_stdout("{}", AsIs{figures_table(run->tasks(), run->outcomes())});
  return inference.end(false);
}

}  // namespace zs
