#include <memory>

#include "model/data/utf8.h"
#include "model/train/cli/commands.h"
#include "model/train/cli/number_option.h"
#include "model/train/cli/rank_work.h"
#include "model/train/config/expand_path.h"
#include "model/train/run_dir/export.h"

namespace zs {
namespace {

/// Exports the model and says so in a line.
std::string export_from(ExportJob& job, const Invocation& by) {
  if (job.from.empty())
    throw Error(ExitCode::usage, fmt::format("{} without a model", by.name), "command line",
                "name a run, a checkpoint, a configuration or a model's folder");
  job.from = expand_path(job.from);
  job.to = expand_path(job.to);
  export_model(job);
  return fmt::format("exported to {}\n", escaped(job.to));
}

Command::Action add_export(CLI::App& app, const Invocation& by) {
  const auto job = std::make_shared<ExportJob>();
  CLI::Option* const from =
      by.is_alias ? nullptr
                  : app.add_option("RUN", job->from, "a run, a checkpoint, a configuration or a model's folder");
  app.add_option(by.spelled("DIR", "--export"), job->to,
                 "a new folder, as transformers loads it, or NAME.gguf (docs/huggingface.md)")
      ->type_name("DIR")
      ->required()
      ->check([](const std::string& text) { return text.empty() ? std::string("needs a new folder") : std::string(); });
  if (from != nullptr) from->required();
  if (by.is_alias) {
    app.add_option("RUN", job->from, "a run, a checkpoint, a configuration or a model's folder");
    app.add_option("--resume", job->from, "the same");
  }
  app.add_flag("--average", job->is_average,
               "of a run or a checkpoint: the average of the weights that it trained with train.average");
  app.add_option(
         "--dtype", job->dtype,
         "f32, bf16, f16 or, of a GGUF file, q8_0, q6_K, q4_K_M; if not given what the folder has that the model came "
         "from, else f32")
      ->transform(CLI::IsMember({"f32", "bf16", "f16", "q8_0", "q6_K", "q4_K_M"}, CLI::ignore_case));
  app.add_option("--shard-mib", job->shard_mib, "about how many MiB a file of weights has at most")
      ->check(integer_from(1, 1 << 30));
  app.add_flag("--adapter", job->is_adapter, "the LoRA adapter alone, as peft loads it");
  app.add_option("--merge", job->merges, "a LoRA adapter that is added to the weights, times WEIGHT (1); repeatable")
      ->type_name("FOLDER[=WEIGHT]")
      ->check(not_empty)
      ->allow_extra_args(false);
  app.add_option("--set", job->overrides, "key=value: a key of the configuration that is read; repeatable")
      ->allow_extra_args(false);
  return [job, by] { return run_alone([&] { return print_answer(export_from(*job, by)); }); };
}

}  // namespace

Command export_command() {
  return {.name = "export",
          .aliases = {"--export"},
          .usage = "RUN DIR",
          .summary = "Writes the model of a run, a checkpoint, a configuration or a folder for others to load.",
          .add = add_export};
}

}  // namespace zs
