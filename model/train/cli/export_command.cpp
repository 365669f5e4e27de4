#include "model/train/cli/export_command.h"

#include "model/data/utf8.h"
#include "model/train/cli/number_option.h"
#include "model/train/config/expand_path.h"
#include "runtime/base/standard_streams.h"

namespace zs {

void add_export_options(CLI::App& app, ExportJob& job) {
  app.add_option("--export", job.to,
                 "write the model of a run, a checkpoint, a configuration or a model's folder as transformers loads "
                 "it, or as NAME.gguf, and stop: "
                 "--export DIR RUN (docs/huggingface.md)")
      ->type_name("DIR")
      ->check([](const std::string& text) { return text.empty() ? std::string("needs a new folder") : std::string(); });
  app.add_flag("--average", job.is_average,
               "with --export of a run or a checkpoint: the average of the weights that it trained with train.average");
  app.add_option(
         "--dtype", job.dtype,
         "with --export: f32, bf16, f16 or, of a GGUF file, q8_0; if not given what the folder has that the model "
         "came from, else f32")
      ->check(CLI::IsMember({"f32", "bf16", "f16", "q8_0"}));
  app.add_option("--shard-mib", job.shard_mib, "with --export: about how many MiB a file of weights has at most")
      ->check(integer_from(1, 1 << 30));
  app.add_flag("--adapter", job.is_adapter, "with --export: the LoRA adapter alone, as peft loads it");
}

std::string export_from(ExportJob& job, const std::string& from) {
  if (from.empty())
    throw Error(ExitCode::usage, "--export without a model", "command line",
                "name a run, a checkpoint, a configuration or a model's folder");
  job.from = expand_path(from);
  job.to = expand_path(job.to);
  export_model(job);
  return fmt::format("exported to {}\n", escaped(job.to));
}

}  // namespace zs
