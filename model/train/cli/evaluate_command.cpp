#include <fmt/ranges.h>

#include <memory>

#include "model/train/cli/commands.h"
#include "model/train/cli/inference_work.h"
#include "model/train/config/expand_path.h"
#include "model/train/inference/evaluate.h"

namespace zs {
namespace {

struct EvaluateOptions : InferenceRequest {
  EvaluateRequest evaluate;
};

RankWork prepare(EvaluateOptions& options, const Invocation& by) {
  EvaluateRequest& evaluate = options.evaluate;
  options.command = "evaluate";
  options.started = fmt::format("--evaluate = {}\n--logits = {}\nfiles = {}\n", options.of,
                                evaluate.logits.empty() ? "no" : evaluate.logits, fmt::join(evaluate.files, " "));
  for (std::string& file : evaluate.files) file = expand_path(file);
  evaluate.logits = expand_path(evaluate.logits);
  evaluate.program_folder = by.program_folder;
  if (evaluate.files.empty() && !find_saved_model(expand_path(options.of)).folder.empty())
    throw Error(ExitCode::usage, "a model's folder has no validation data", options.of,
                fmt::format("name files: {} FOLDER FILE...", by.name));
  options.files = evaluate.files;
  return inference_work(options, [evaluate](Inference& inference) { return zs::evaluate(inference, evaluate); });
}

Command::Action add_evaluate(CLI::App& app, const Invocation& by) {
  const auto options = std::make_shared<EvaluateOptions>();
  app.add_option(by.spelled("RUN", "--evaluate"), options->of, "a run, of which the newest checkpoint, or a checkpoint")
      ->type_name("RUN")
      ->required()
      ->check(not_empty);
  app.add_option("FILE...", options->evaluate.files,
                 "files, patterns or folders; none: the run's validation data (docs/inference.md)")
      ->type_name("");
  app.add_option("--set", options->overrides, "key=value: overrides a key of the run; repeatable")
      ->allow_extra_args(false);
  app.add_option("--logits", options->evaluate.logits, "a new file for the logits, (tokens, model.vocab) f32 by rows")
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
