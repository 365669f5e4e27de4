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

}  // namespace

void Trainer::validate(StepMetrics& metrics) {
  lacks_validation_ = stop_ != StopReason::none;
  if (lacks_validation_) return;
  const double loss = session_->validate(reader(*dataset_->validation), dataset_->validation->windows());
  lacks_validation_ = session_->is_interrupted();
  if (lacks_validation_) return;
  metrics.val_loss = static_cast<float>(loss);
  note_validation(metrics.step, *metrics.val_loss);
}

void Trainer::validate_behind(std::int64_t step, bool is_requested, StepMetrics& metrics) {
  is_new_best_ = false;
  if (is_validated(step) || (is_requested && can_validate())) {
    lacks_data_ = lacks_data_ || lacks_validation_samples();
    if (!lacks_data_) validate(metrics);
  }
  if (is_requested && is_first()) take_request();
}

void Trainer::catch_up_validation() {
  if (saved_step_ < 0 || !is_validated(saved_step_)) return;
  const bool is_lacking = is_first() && log_->lacks_validation(saved_step_);
  if (world_.agree(is_lacking ? 1 : 0, "").code == 0) return;
  watch_.enter(Phase::first_step, saved_step_);
  lacks_data_ = lacks_validation_samples();
  if (lacks_data_) return;
  StepMetrics metrics{.step = saved_step_};
  validate(metrics);
  if (is_first() && metrics.val_loss) {
    log_->add_validation(saved_step_, *metrics.val_loss);
    views_->add_validation(saved_step_, *metrics.val_loss);
    print_to_stdout("step {}/{}  val {:.4f}\n", saved_step_, config_.train.steps, *metrics.val_loss);
  }
}

void Trainer::validate_first() {
  if (!config_.run.validate_first || !can_validate()) return;
  watch_.enter(Phase::first_step, 0);
  lacks_data_ = lacks_validation_samples();
  if (lacks_data_) return;
  StepMetrics metrics{.loss = std::nanf(""), .grad_norm = std::nanf("")};  // there is none of step 0
  validate(metrics);
  if (!is_first() || !metrics.val_loss) return;
  log(metrics);
  print_to_stdout("step 0/{}  val {:.4f}\n", config_.train.steps, *metrics.val_loss);
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
