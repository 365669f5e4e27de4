// Validations of a run: when they are, and what follows from them: which checkpoint is the best, and when to end.

#include <sys/stat.h>
#include <unistd.h>

#include <cmath>

#include "comm/together.h"
#include "model/train/rank/print.h"
#include "model/train/trainer/trainer.h"
#include "runtime/base/standard_streams.h"
#include "runtime/shard/checkpoint/checkpoint_folder.h"

namespace zs {
namespace {

constexpr const char* kValidateNow = "validate-now";

int run_tasks(TaskRun& tasks, Session& session, World& world, const TaskRun::GoesOn& goes_on) {
  swap_validated_weights(session);
  const int code = tasks.run(session, world, goes_on);
  swap_validated_weights(session);
  return code;
}

}  // namespace

int Trainer::validate(StepMetrics& metrics) {
  lacks_validation_ = stop_ != StopReason::none;
  if (lacks_validation_) return 0;
  std::optional<float> loss;
  if (const auto& source = dataset_->validation) {
    loss = static_cast<float>(session_->validate(reader(*source), source->windows()));
    lacks_validation_ = session_->is_interrupted();
    if (lacks_validation_) return 0;
  }
  if (tasks_) {
    if (verifier_) verifier_->pause();  // the host waits for each batch
    const int code = run_tasks(*tasks_, *session_, world_, [this, &metrics](std::int64_t) {
      watch_.enter(Phase::step, metrics.step);
      watch_.hit("tasks");
      return verifier_ || !agrees_to_stop();
    });
    lacks_validation_ = !tasks_->is_whole();
    if (lacks_validation_) metrics.bytes_to_come = json_bytes(tasks_->metrics());
    if (code != 0 || lacks_validation_) return code;
    metrics.tasks = tasks_->metrics();
  }
  metrics.val_loss = loss;
  if (loss) note_validation(metrics.step, *loss);
  return 0;
}

int Trainer::validate_behind(std::int64_t step, bool is_requested, StepMetrics& metrics) {
  is_new_best_ = false;
  int code = 0;
  if (is_validated(step) || (is_requested && can_validate())) {
    lacks_data_ = lacks_data_ || lacks_validation_samples();
    if (!lacks_data_) code = validate(metrics);
  }
  if (is_requested && is_first()) take_request();
  return code;
}

int Trainer::validate_before(std::int64_t done) {
  const bool begins = done == 0 && best_ == BestValidation{} && config_.run.validate_first && can_validate();
  const bool is_own = saved_step_ == done && is_validated(done);  // the run goes on
  const bool is_lacking = is_own && world_.agree(is_first() && log_->lacks_validation(done) ? 1 : 0, "").code != 0;
  if (!begins && !is_lacking) return 0;
  watch_.enter(Phase::first_step, done);
  lacks_data_ = lacks_validation_samples();
  if (lacks_data_) return 0;
  StepMetrics metrics{.step = done, .loss = std::nanf(""), .grad_norm = std::nanf("")};  // there is none of step 0
  if (const int code = validate(metrics); code != 0) return code;
  if (!is_first() || !metrics.is_validated()) return 0;
  if (is_lacking) {
    log_->add_validation(metrics);
    views_->add_validation(metrics);
  } else {
    log(metrics);
  }
  if (metrics.val_loss) print_to_stdout("step {}/{}  val {:.4f}\n", done, config_.train.steps, *metrics.val_loss);
  if (!metrics.tasks.empty()) print_to_stdout("{}\n", escaped(tasks_line(metrics, config_.train.steps)));
  return 0;
}

bool Trainer::is_validation_requested() const {
  struct stat status {};
  return ::stat((run_dir_ + "/" + kValidateNow).c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

void Trainer::take_request() const { ::unlink((run_dir_ + "/" + kValidateNow).c_str()); }

void Trainer::find_best() {
  if (!has_checkpoint_) return;
  together(world_, [&] {
    if (!is_first()) return;
    for (const auto& [step, loss] : log_->validations(resume_->step)) best_.note(step, loss);
  });
  best_ = BestValidation::parse(shared(best_.text()));
}

/// Step 0 has no checkpoint: its weights are those that training began with.
void Trainer::note_validation(std::int64_t step, float loss) { is_new_best_ = best_.note(step, loss) && step > 0; }

bool Trainer::is_out_of_patience() const {
  return config_.train.patience > 0 && has_results() && best_.since >= config_.train.patience;
}

std::optional<std::int64_t> Trainer::kept_best() const {
  return config_.checkpoint.keep_best && best_.is_known() ? std::optional(best_.step) : std::nullopt;
}

void Trainer::say_best(std::int64_t steps_done) const {
  if (is_out_of_patience() && steps_done < config_.train.steps)
    print_to_stdout("ended after step {} of {}: no better validation in the last {}{}\n", steps_done,
                    config_.train.steps, best_.since,
                    best_.is_known() ? fmt::format(" than {:.4f} of step {}", best_.loss, best_.step) : "");
  if (!config_.checkpoint.keep_best || !best_.is_known()) return;
  const std::string folder = step_folder(run_dir_ + "/checkpoints", best_.step);
  struct stat status {};
  print_to_stdout("best validation: {:.4f} of step {}{}\n", best_.loss, best_.step,
                  ::stat(folder.c_str(), &status) == 0 ? ", in " + folder : "");
}

}  // namespace zs
