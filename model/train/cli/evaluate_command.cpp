#include <fmt/ranges.h>

#include <memory>

#include "model/train/cli/commands.h"
#include "model/train/cli/inference_work.h"
#include "model/train/config/expand_path.h"
#include "model/train/inference/evaluate.h"
#include "model/train/inference/evaluate_tasks.h"
#include "model/train/rank/agreed.h"

namespace zs {
namespace {

struct EvaluateOptions : InferenceRequest {
  EvaluateRequest evaluate;
};

int evaluate_files(Inference& inference, const EvaluateRequest& request) {
  bool has_tasks = false;
  const auto look = [&] { has_tasks = are_tasks(inference.config(), request); };
  if (const int code = agreed(inference.world(), look); code != 0) return code;
  // The first rank's files count: a rank that lacks them says so when it reads them.
  const bool is_first = inference.is_first() && has_tasks;
  has_tasks = inference.world().agree(is_first ? 1 : 0, "").code != 0;
  return has_tasks ? evaluate_tasks(inference, request) : evaluate(inference, request);
}

RankWork prepare(EvaluateOptions& options, const Invocation& by) {
  EvaluateRequest& evaluate = options.evaluate;
  options.command = "evaluate";
  options.started = fmt::format("--evaluate = {}\n--logits = {}\n--out = {}\nfiles = {}\n", options.of,
                                evaluate.logits.empty() ? "no" : evaluate.logits,
                                evaluate.out.empty() ? "no" : evaluate.out, fmt::join(evaluate.files, " "));
  for (std::string& file : evaluate.files) file = expand_path(file);
  evaluate.logits = expand_path(evaluate.logits);
  evaluate.out = expand_path(evaluate.out);
  evaluate.program_folder = by.program_folder;
  if (evaluate.files.empty() && !find_saved_model(expand_path(options.of)).folder.empty())
    throw Error(ExitCode::usage, "a model's folder has no validation data", options.of,
                fmt::format("name files: {} FOLDER FILE...", by.name));
  options.files = evaluate.files;
  return inference_work(options, [evaluate](Inference& inference) { return evaluate_files(inference, evaluate); });
}

Command::Action add_evaluate(CLI::App& app, const Invocation& by) {
  const auto options = std::make_shared<EvaluateOptions>();
  app.add_option(by.spelled("RUN", "--evaluate"), options->of, "a run, of which the newest checkpoint, or a checkpoint")
      ->type_name("RUN")
      ->required()
      ->check(not_empty);
  app.add_option("FILE...", options->evaluate.files,
                 "files, patterns or folders, or tasks; none: the run's validation data (docs/inference.md)")
      ->type_name("");
  app.add_option("--set", options->overrides, "key=value: overrides a key of the run; repeatable")
      ->allow_extra_args(false);
  app.add_option("--logits", options->evaluate.logits, "a new file for the logits, (tokens, model.vocab) f32 by rows")
      ->type_name("FILE")
      ->check(not_empty);
  app.add_option("--out", options->evaluate.out, "a new file for what each line of the tasks came to, as JSON lines")
      ->type_name("FILE")
      ->check(not_empty);
  return [options, by] { return run_on_ranks([&] { return prepare(*options, by); }); };
}

}  // namespace

Command evaluate_command() {
  return {.name = "evaluate",
          .aliases = {"--evaluate"},
          .usage = "RUN [FILE...]",
          .summary = "Prints loss, perplexity and tokens of a saved model.",
          .add = add_evaluate};
}

}  // namespace zs
