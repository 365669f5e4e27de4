#include <memory>

#include "model/train/cli/commands.h"
#include "model/train/cli/number_option.h"
#include "model/train/cli/rank_work.h"
#include "model/train/cli/tune_file.h"
#include "model/train/config/expand_path.h"
#include "model/train/config/site_defaults.h"
#include "model/train/rank/error_line.h"
#include "model/train/run_dir/resume.h"
#include "model/train/trainer/trainer.h"

namespace zs {
namespace {

struct TuneOptions {
  TuneRequest request;
  std::string out;
  bool only_writes = false;
};

TrainJob job_of(Config config, const Invocation& by) {
  TrainJob job;
  job.config = std::move(config);
  job.started = by.started;
  job.program_folder = by.program_folder;
  return job;
}

/// Writes the settings that fit, nearest to those of `file`.
int write_fitting(World& world, const std::shared_ptr<const TuneFile>& file, const Config& config,
                  const std::string& out, const Invocation& by) {
  TrainJob job = job_of(config, by);
  job.dry_run = true;
  job.fit = "nearest";
  job.fit_out = out;
  job.fit_text = [file](const std::vector<std::string>& changes) { return file->text(changes); };
  return Trainer(world, job).run();
}

/// Trains as the file says, which is there now.
int train_by(World& world, const std::string& path, const Invocation& by) {
  TrainJob job = job_of(load_config(path, {}, ConfigFor::training, site_defaults()), by);
  job.config_path = path;
  job.run_dir = run_dir_asked_for(job.config, path, "");
  return Trainer(world, job).run();
}

RankWork tune_work(const TuneOptions& options, const Invocation& by) {
  const std::string out = expand_path(options.out.empty() ? default_tune_file(options.request.model) : options.out);
  const auto file = std::make_shared<const TuneFile>(options.request, out);
  const Config config = parse_config(file->text(), out, {}, ConfigFor::training, site_defaults());
  if (const std::string note = site_note(config); !note.empty() && is_first_started()) print_note(note);
  return {.config = config,
          .config_path = out,
          .started = fmt::format("tune = {}\n--no-train = {}\n", out, options.only_writes ? "yes" : "no"),
          .run = [=](World& world) {
            const int code = write_fitting(world, file, config, out, by);
            return code != 0 || options.only_writes ? code : train_by(world, out, by);
          }};
}

Command::Action add_tune(CLI::App& app, const Invocation& by) {
  const auto options = std::make_shared<TuneOptions>();
  TuneRequest& request = options->request;
  app.add_option("MODEL", request.model, "a model's folder, as transformers has it")->required()->check(not_empty);
  app.add_option("DATA", request.data,
                 "files, patterns or folders: JSON Lines with messages, with pairs of answers, with prompts or texts; "
                 "text; or token files that end with .bin")
      ->required()
      ->check(not_empty);
  app.add_option("--lora", request.rank, "rank of the adapters (16); 0 trains the whole model")
      ->type_name("RANK")
      ->check(integer_from(0, 1 << 20));
  app.add_option("--out", options->out, "the configuration that is written; if not given tune-MODEL.toml")
      ->type_name("FILE.toml")
      ->check(not_empty);
  app.add_flag("--no-train", options->only_writes, "write the configuration, and stop");
  app.add_option("--set", request.overrides, "key=value: a key that goes into the file, too; repeatable")
      ->allow_extra_args(false);
  return [options, by] { return run_on_ranks([&] { return tune_work(*options, by); }); };
}

}  // namespace

Command tune_command() {
  return {.name = "tune",
          .usage = "MODEL DATA... [--lora RANK] [--out FILE.toml] [--no-train]",
          .summary = "Fine-tunes a model on data: writes a configuration that fits this machine, and trains by it.",
          .add = add_tune};
}

}  // namespace zs
