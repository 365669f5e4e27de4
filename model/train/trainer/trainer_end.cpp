// End of a run, and how it stops: who asks it to, what is saved then, and what is kept ready for that.

#include <algorithm>
#include <cmath>
#include <thread>
#include <utility>

#include "model/data/utf8.h"
#include "model/train/rank/agreed.h"
#include "model/train/rank/error_line.h"
#include "model/train/rank/print.h"
#include "model/train/rank/program.h"
#include "model/train/rank/stop_signal.h"
#include "model/train/run_dir/export.h"
#include "model/train/run_dir/weights.h"
#include "model/train/session/sample.h"
#include "model/train/session/sample_text.h"
#include "model/train/trainer/trainer.h"
#include "runtime/base/launch.h"
#include "runtime/base/standard_streams.h"
#include "runtime/shard/checkpoint/checkpoint.h"

namespace zs {
namespace {

/// Bytes of a tensor in the header of a safetensors file; of a segment in a checkpoint's manifest and its padding.
constexpr std::int64_t kHeaderBytes = 160, kSegmentBytes = 200;

double elapsed_s(TimeLimit::Clock::time_point start) {
  return std::chrono::duration<double>(TimeLimit::Clock::now() - start).count();
}

}  // namespace

StopReason Trainer::own_stop() {
  margin_->note_gap(elapsed_s(last_poll_));
  last_poll_ = TimeLimit::Clock::now();
  if (is_stop_requested()) return StopReason::request;
  return limit_->would_miss(margin_->seconds()) ? StopReason::time_limit : StopReason::none;
}

bool Trainer::agrees_to_stop() {
  stop_ = std::max(stop_, static_cast<StopReason>(world_.agree(static_cast<int>(own_stop()), "").code));
  return stop_ != StopReason::none;
}

std::int64_t Trainer::checkpoint_bytes() const {
  std::int64_t bytes = 0;
  for (const TrainPlan::Unit& unit : plan_.units)
    bytes += (unit.is_frozen              ? int{!config_.checkpoint.leaves_out_frozen()}
              : config_.train.average > 0 ? 4
                                          : 3) *
             (size_of(DType::f32) * whole_elems(*unit.layout) + kSegmentBytes * std::ssize(unit.layout->views()));
  return bytes;
}

void Trainer::reserve_space(const std::string& folder) {
  if (!has_results()) return;
  std::int64_t tensors = 0;
  for (const TrainPlan::Unit& unit : plan_.units) tensors += std::ssize(unit.layout->views());
  const std::int64_t weights = saved_bytes(plan_, !config_.checkpoint.leaves_out_frozen()) + kHeaderBytes * tensors;
  space_.take(folder, weights, "the final weights");
  if (config_.checkpoint.is_regular() && config_.checkpoint.on_full == "stop")
    check_space(folder, checkpoint_bytes(), "a checkpoint beside the final weights");
}

void Trainer::print_how_to_stop() const {
  if (limit_->is_set()) print_to_stdout("stops and saves by itself in time for {}\n", limit_->name());
  const Launch launch = read_launch();
  if (launch.manager == ProcessManager::open_mpi)
    print_to_stdout(
        "to stop and save: SIGUSR1 to mpirun; after Ctrl-C or SIGTERM it kills within about 1 s (--mca "
        "odls_base_sigkill_timeout SECONDS)\n");
  if (launch.manager == ProcessManager::pmi && launch.slurm_step.empty())
    print_to_stdout("to stop and save: Ctrl-C, or SIGTERM or SIGUSR1 to {}\n", launch.launcher);
  if (!launch.slurm_step.empty())
    print_to_stdout(
        "to stop and save: scancel --signal=USR1 {}; without --signal Slurm kills after KillWait (30 s by default)\n",
        launch.slurm_step);
}

int Trainer::try_to_save(std::int64_t step, bool is_last_chance, const std::function<void()>& body) {
  std::string warning;
  const int code = collectively(world_, fmt::format("step {}", step), [&] {
    try {
      body();
    } catch (const AgreedError& error) {
      if (is_last_chance || config_.checkpoint.on_full != "warn" || !is_for_lack_of_space(error))
        throw AgreedError(error.code(), error.what_happened(), error.where(),
                          fmt::format("{}, then {}", error.what_to_do(), resume_hint()));
      warning =
          fmt::format("the checkpoint of step {} is not saved, and the run goes on: {}", step, error.what_happened());
    }
  });
  tell("warning", warning);
  last_poll_ = TimeLimit::Clock::now();
  return code;
}

void Trainer::note_saved(std::int64_t step, double seconds) {
  has_checkpoint_ = true;
  watch_.saved(step);
  saved_step_ = step;
  margin_->note_save(seconds);
  refresh_views();
}

/// The metrics up to this step first: where the checkpoint is, they are.
int Trainer::save_checkpoint(std::int64_t step, bool is_last_chance) {
  if (const int failure = finish_save(); failure != 0) return failure;
  watch_.enter(Phase::checkpoint, step);
  last_save_ = TimeLimit::Clock::now();
  const bool in_background =
      config_.checkpoint.background && !is_last_chance && step < config_.train.steps && !is_out_of_patience();
  const int code = try_to_save(step, is_last_chance, [&] {
    CheckpointInfo info{.step = step,
                        .attributes = run_attributes(config_, data_facts_),
                        .with_frozen = !config_.checkpoint.leaves_out_frozen()};
    together(world_, [&] {
      if (!is_first()) return;
      if (!info.with_frozen) frozen_.add_to(info.attributes);
      log_->sync();
      mark_->begin(checkpoint_name(step));
    });
    const TrainingState state{world_, session_->runtime().executor(), session_->optimizer()};
    if (is_first()) info.attributes[CheckpointOwner::kAttribute] = mark_->id();  // rank 0 writes it
    if (const std::string& chosen = session_->products().chosen(); !chosen.empty())
      info.attributes[ProductTuning::kAttribute] = chosen;
    const std::string root = run_dir_ + "/checkpoints";
    if (in_background) {
      save_ = std::make_unique<SaveOnItsWay>(step, watch_, state, root, info, session_->save_memory());
      return;
    }
    CheckpointWatch files(watch_);
    save(state, root, info, &files);
    note_saved(step, elapsed_s(last_save_));
  });
  return code != 0 || saved_step_ != step ? code : prune_saved(step);
}

/// A thread that writes counts as work, one that does not move does not.
void Trainer::wait_for_writing() const {
  for (std::int64_t seen = -1; save_->save.is_writing();) {
    if (const std::int64_t changes = save_->files.changes(); changes != std::exchange(seen, changes))
      const StatusScope status(watch_.watchdog(), "writing a checkpoint", StatusScope::Host::works);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

int Trainer::finish_save() {
  if (!save_) return 0;
  const std::int64_t step = save_->step;
  watch_.enter(Phase::checkpoint, step);
  wait_for_writing();
  const int code = try_to_save(step, false, [&] {
    save_->save.finish();
    note_saved(step, 2 * save_->save.writing_s());  // a run that stops waits for one save and makes another
  });
  save_.reset();
  return code != 0 || saved_step_ != step ? code : prune_saved(step);
}

int Trainer::prune_saved(std::int64_t step) {
  return collectively(world_, fmt::format("step {}", step),
                      [&] { together(world_, [&] { prune_own_checkpoints(); }); });
}

void Trainer::finish(std::int64_t steps_done, bool was_stopped) {
  watch_.enter(Phase::ending, steps_done);
  weights_hash_ = "not saved, since the results are meaningless";
  space_.release();
  if (has_results()) weights_hash_ = save_final_weights();
  if (has_results() && !was_stopped) watch_.finished();
  if (is_first()) print_to_stdout("{}weights: {}\n", is_terminal_ ? "\n" : "", weights_hash_);
  if (is_first() && has_results() && !was_stopped) say_best(steps_done);
  if (has_results() && !was_stopped && config_.run.sample_tokens > 0) print_sample();
  if (is_first() && has_results() && !was_stopped && !config_.run.export_to.empty()) {
    export_run(config_, run_dir_ + "/model.safetensors", *mark_);
    print_to_stdout("exported to {}\n", config_.run.export_to);
  }
  if (is_first() && has_results() && !was_stopped && !config_.lora.export_to.empty()) {
    export_run_adapter(config_, run_dir_ + "/model.safetensors", *mark_);
    print_to_stdout("adapter exported to {}\n", config_.lora.export_to);
  }
  if (is_first() && was_stopped) {
    if (stdout_failure() != 0) tell("warning", lost_output());
    const std::string why = stop_ == StopReason::request ? "on request" : "in time for " + limit_->name();
    print_to_stderr("{}: stopped {} after step {} of {}: {}\n", program_name(), why, steps_done, config_.train.steps,
                    has_results() ? fmt::format("saved in {}; add --resume latest to go on", escaped(run_dir_))
                                  : "nothing is saved");
  }
}

std::string Trainer::lost_output() const {
  const std::string kept =
      weights_hash_.empty() ? "" : fmt::format("; weights: {}, run directory {}", weights_hash_, run_dir_);
  return fmt::format("standard output was lost: {}{}", system_reason(stdout_failure()), kept);
}

/// Reports lost output. Not collective: only one rank prints, and its code is the job's. One that is not 0 stays: the
/// launcher goes by it.
int Trainer::report_lost_output(int code) const {
  if (!is_first() || code != 0 || stdout_failure() == 0) return code;
  const Error error(ExitCode::io, lost_output(), "stdout", "send it where there is room");
  print_to_stderr("{}\n", error_line(error));
  return static_cast<int>(error.code());
}

void Trainer::print_sample() {
  const SampleText text(config_, tokenizer_.get());
  SampleTask task{.prompt = text.prompt(config_.run.sample_prompt, "run.sample_prompt"),
                  .count = config_.run.sample_tokens};
  task.options.seed = static_cast<std::uint64_t>(config_.train.seed);
  task.stops = [this] { return agrees_to_stop(); };
  if (tokenizer_ && tokenizer_->end_of_text()) task.ends.push_back(*tokenizer_->end_of_text());
  const auto tokens = without_end(sample_tokens(*session_, world_, task), task);
  if (is_first())
    print_to_stdout("sample: {}\n", AsIs{text.print(config_.run.sample_prompt, task.prompt, tokens, prints_utf8())});
}

}  // namespace zs
