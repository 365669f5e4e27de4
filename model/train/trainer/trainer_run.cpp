// Trainer's output, and its run's directory.

#include "model/data/utf8.h"
#include "model/train/config/config_dataset.h"
#include "model/train/rank/agreed.h"
#include "model/train/rank/error_line.h"
#include "model/train/rank/print.h"
#include "model/train/run_dir/weights.h"
#include "model/train/trainer/trainer.h"
#include "runtime/base/standard_streams.h"
#include "runtime/shard/checkpoint/checkpoint.h"
#include "runtime/shard/checkpoint/checkpoint_folder.h"

namespace zs {
namespace {

/// True where a run can go on in its folder, which may have been removed meanwhile.
bool can_go_on(const std::string& run_dir) {
  try {
    return RunMark::find(run_dir) && !list_checkpoints(run_dir + "/checkpoints").empty();
  } catch (const Error&) {  // a disk that fails may come back
    return true;
  }
}

}  // namespace

RunDirRequest Trainer::run_dir_request() const {
  return {job_.run_dir, config_.name, job_.overwrite, job_.resume == "auto"};
}

std::string Trainer::config_text() const {
  return to_toml(with_absolute_paths(config_, job_.config_path, job_.program_folder));
}

int Trainer::load_weights() {
  if (weights_.empty()) return 0;
  for (const auto& files : weights_)
    for (const std::string& warning : files->warnings()) tell("warning", warning);
  const int code = collectively(world_, "", [&] { import_weights(world_, session_->runtime().executor(), weights_); });
  weights_.clear();
  if (code == 0 && is_first() && config_.checkpoint.leaves_out_frozen()) frozen_.read(config_.model.path);
  if (code == 0 && is_first() && !resume_) print_to_stdout("beginning from the weights in {}\n", config_.model.path);
  return code;
}

int Trainer::load_checkpoint() {
  if (!resume_ || !weights_.empty()) {
    if (const int code = load_weights(); code != 0) return code;
  }
  if (!resume_) return collectively(world_, "", [&] { begin_adapters(*session_); });
  return collectively(world_, "", [&] {
    CheckpointInfo info = load({world_, session_->runtime().executor(), session_->optimizer()}, resume_->checkpoint);
    session_->products().restore(info.attributes[ProductTuning::kAttribute]);
    tell("note", session_->products().take_message());
    if (has_checkpoint_) saved_step_ = resume_->step;
    find_best();
    together(world_, [&] { take_up_run(); });
    if (!is_first()) return;
    for (const std::int64_t step : resume_->damaged) print_note(fmt::format("step {} is damaged and set aside", step));
    print_to_stdout("going on after step {} from {}{}{}\n", resume_->step, resume_->checkpoint,
                    changed_keys_.empty() ? "" : "; changed: ", fmt::format("{}", fmt::join(changed_keys_, ", ")));
  });
}

/// Only when the checkpoint is loaded: until then the run stays as it is.
void Trainer::take_up_run() {
  if (!is_first() || !goes_on_) return;
  clear_way(*resume_, *mark_, config_.checkpoint.keep, kept_best());
  if (const std::string kept = reopen_run_dir(run_dir_, *mark_, config_text()); !kept.empty())
    print_note("config.toml was changed since the run wrote it, and is now " + kept);
  if (const std::int64_t last = log_->cut_after(resume_->step); last != resume_->step)
    print_note(fmt::format("metrics.jsonl lacks steps {} to {}", last + 1, resume_->step));
}

void Trainer::prune_own_checkpoints() {
  if (is_first())
    prune_checkpoints(mark_->checkpoints(), config_.checkpoint.keep, nullptr, mark_->owner(), kept_best());
}

void Trainer::log(const StepMetrics& metrics) {
  log_->append(metrics);
  views_->add(metrics);
}

void Trainer::open_views() {
  if (!is_first()) return;
  RunRecord record{.name = config_.name, .config_toml = config_text(), .planned_steps = config_.train.steps};
  read_metrics(run_dir_ + "/metrics.jsonl", record);
  views_.emplace(run_dir_, *mark_, std::move(record), config_.run.tensorboard);
  refresh_views();
}

void Trainer::refresh_views() {
  if (!is_first()) return;
  views_->refresh();
  for (const std::string& warning : views_->take_warnings()) tell("warning", warning);
}

void Trainer::end_views(int code) {
  if (!is_first()) return;
  if (code == 0) {
    views_->end(RunState::finished, "");
  } else if (code == static_cast<int>(ExitCode::stopped)) {
    const std::string why = stop_ == StopReason::request ? "on request" : "in time for " + limit_->name();
    views_->end(RunState::stopped, fmt::format("{}; {}", why, resume_hint()));
  } else {
    views_->end(RunState::failed, fmt::format("with exit code {}; {}", code, resume_hint()));
  }
  if (code != 0) return;  // the last line has been printed
  for (const std::string& warning : views_->take_warnings()) tell("warning", warning);
}

void Trainer::explain_steps() {
  if (!explainer_) return;
  try {
    if (const std::string text = explainer_->finish(world_.rank()); !text.empty())
      print_to_stdout("{}{}", is_terminal_ ? "\n" : "", AsIs{text});
  } catch (const Error& error) {  // the run is worth more
    tell("warning", fmt::format("no trace is written: {}", error.what()));
  }
}

std::string Trainer::resume_hint() const {
  if (has_checkpoint_) return can_go_on(run_dir_) ? "go on with --resume latest" : "start again in another run.dir";
  return resume_ ? "start again with --overwrite"
                 : "start again with --resume auto";  // begun from another run's checkpoint, or from none
}

/// Answers what the session asks while a step computes.
void Trainer::answer_within(std::int64_t step) {
  session_->validate_on_request([this] { return is_first() && is_validation_requested(); });
  session_->look_ahead([this, step] { return step < config_.train.steps && lacks_samples(step + 1); });
  session_->save_by(
      [this] {
        const double minutes = config_.checkpoint.every_minutes;
        return is_first() && minutes > 0 && TimeLimit::Clock::now() - last_save_ >= minutes * std::chrono::minutes(1);
      },
      [this] { return save_ && save_->save.is_writing(); });
}

/// The session keeps the weights that are saved, for the sample: there are no more steps.
std::string Trainer::save_final_weights() {
  constexpr const char* kFile = "model.safetensors";
  if (mark_) mark_->begin(kFile);
  if (session_->optimizer().definition().evaluation) session_->optimizer().swap_average();
  WeightsFile file;
  if (is_first()) file.path = run_dir_ + "/" + kFile;
  if (is_first() && config_.checkpoint.leaves_out_frozen()) {
    frozen_.add_to(file.frozen);
    name_frozen_format(config_.precision.quantize, file.frozen);
  }
  const std::string hash = save_weights(session_->runtime().executor(), file);
  if (mark_) mark_->wrote(kFile);
  return hash;
}

}  // namespace zs
