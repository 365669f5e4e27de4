#include "model/train/rank/agreed.h"
#include "model/train/rank/print.h"
#include "model/train/rank/program.h"
#include "model/train/rank/stop_signal.h"
#include "model/train/trainer/trainer.h"
#include "runtime/base/standard_streams.h"
#include "runtime/base/units.h"

namespace zs {
namespace {

/// Name of the data, alike on all ranks that train on the same data.
std::string name_of(const DataFacts& facts) {
  return fmt::format("{} tokens, digests {} and {}", facts.train_tokens, facts.train_digest, facts.validation_digest);
}

}  // namespace

ReadSamples Trainer::reader(const SampleSource& source) const {
  return [this, &source](std::int64_t first) {
    const StatusScope status(watch_.watchdog(), "reading data", StatusScope::Host::works);
    watch_.hit("data.load");
    return source.read(first, config_.train.micro_batch);
  };
}

ReadSamples Trainer::reader_ahead() {
  return [this](std::int64_t first) {
    const StatusScope status(watch_.watchdog(), "reading data", StatusScope::Host::works);
    watch_.hit("data.load");
    SampleBatch batch;
    const auto take = [&] { batch = ahead_->take(first); };
    explainer_ ? explainer_->timed_read(take) : take();
    return batch;
  };
}

void Trainer::read_ahead_from(std::int64_t step) {
  const std::int64_t batch = config_.train.global_batch, begin = data_share_.index * config_.train.micro_batch,
                     round = data_share_.count * config_.train.micro_batch;
  ahead_.emplace(
      [this](std::int64_t first) { return dataset_->train.read(first, config_.train.micro_batch); },
      ReadAhead::Range{.first = (step - 1) * batch + begin,
                       .next =
                           [=](std::int64_t first) {
                             const std::int64_t in_step = first % batch + round;
                             return first - first % batch + (in_step < batch ? in_step : batch + begin);
                           },
                       .end = config_.train.steps * batch},
      static_cast<std::size_t>(session_->local_micro_batches() + 1));  // a step may take all of its own at once
  session_->count_data_waits([this] { return ahead_->waited_ns(); });
}

void Trainer::print_data() const {
  const SampleSource& source = dataset_->train;
  const double windows = static_cast<double>(source.windows());
  if (source.documents() != 0)
    print_to_stdout("{}, packed into {} of {} tokens{}, {:.1f} % full\n", format_number(source.documents(), "document"),
                    format_number(source.windows(), "sequence"), source.sequence(),
                    has_own_sequence_ ? " (train.sequence by the data)" : "",
                    100 * static_cast<double>(source.tokens()) / (windows * static_cast<double>(source.sequence())));
  const double epochs =
      static_cast<double>(config_.train.steps) * static_cast<double>(config_.train.global_batch) / windows;
  print_to_stdout("data: {}, {} of {}; {} of {} are {} epochs\n", format_number(source.tokens(), "token"),
                  format_number(source.windows(), "sequence"), source.sequence(),
                  format_number(config_.train.steps, "step"), format_number(config_.train.global_batch, "sequence"),
                  epochs < 100 ? fmt::format("{:.3g}", epochs) : fmt::format("{:.0f}", epochs));
  if (config_.train.global_batch > source.windows())
    tell("warning",
         fmt::format("a step takes {} and the data has {}: it goes over them more than once; lower train.global_batch",
                     format_number(config_.train.global_batch, "sequence"), source.windows()));
  if (tasks_) tell("note", tasks_->note());
  if (dataset_->validation && !can_validate() && config_.data.validation.empty())
    tell("note", fmt::format("{} are kept for validation, and nothing validates: set data.validation_fraction = 0 to "
                             "train on them",
                             format_number(dataset_->validation->tokens(), "token")));
}

int Trainer::agree_on_data() {
  const std::string own = name_of(data_facts_), first = shared(own);
  const int code = agreed(world_, [&] {
    if (own != first)
      throw Error(ExitCode::ranks_disagree,
                  fmt::format("the ranks differ: this one's data has {}, rank 0's {}", own, first),
                  dataset_->files.front(), "give every rank the same data");
  });
  return code != 0 || !tasks_ ? code : agree_on_tasks(world_, *tasks_, "run.evaluate");
}

int Trainer::verify_data() {
  if (!job_.verify_data) return 0;
  const bool is_shown = is_first() && prints_to_terminal();
  const StatusScope status(watch_.watchdog(), "verifying data", StatusScope::Host::works);
  watch_.hit("data.verify");
  int shown = -1;
  const auto progress = [&](double part) {
    if (is_stop_requested())
      throw Error(ExitCode::stopped, "stopped on request while the data was verified", "", "nothing has begun");
    const int percent = static_cast<int>(100 * part);
    if (!is_shown || std::exchange(shown, percent) == percent) return;
    print_to_stdout("\rverifying data: {} %\x1b[K", percent);
  };
  const int code = agreed(world_, [&] {
    progress(0);  // another rank may read all of little data
    verify(*dataset_, world_.rank(), world_.size(), progress);
    if (is_shown) print_to_stdout("\r\x1b[K");
  });
  if (code == 0 && is_first()) {
    print_to_stdout("data verified: every token of {}\n",
                    format_number(static_cast<std::int64_t>(dataset_->files.size()), "file"));
  }
  return code;
}

void Trainer::check_samples(std::int64_t step) const {
  const StatusScope status(watch_.watchdog(), "reading data", StatusScope::Host::works);
  watch_.hit("data.check");
  const std::int64_t batch = config_.train.global_batch, rows = config_.train.micro_batch;
  for (std::int64_t i = data_share_.index * rows; i < batch; i += data_share_.count * rows)
    dataset_->train.check((step - 1) * batch + i, rows);
}

bool Trainer::lacks_samples(std::int64_t step) {
  const auto check = [&] { check_samples(step); };
  try {
    explainer_ ? explainer_->timed_read(check) : check();
  } catch (const Error& error) {
    missing_data_ = error;
  }
  return missing_data_.has_value();
}

bool Trainer::lacks_validation_samples() {
  if (!dataset_->validation) return false;
  const SampleSource& source = *dataset_->validation;
  const StatusScope status(watch_.watchdog(), "reading data", StatusScope::Host::works);
  watch_.hit("data.check");
  const std::int64_t rows = config_.train.micro_batch;
  const std::int64_t samples = std::min(source.windows(), config_.run.validate_batches * config_.train.global_batch);
  try {
    for (std::int64_t i = data_share_.index * rows; i < samples; i += data_share_.count * rows)
      source.check(i, std::min(rows, samples - i));
  } catch (const Error& error) {
    missing_data_ = error;
  }
  return world_.agree(missing_data_ ? 1 : 0, "").code != 0;
}

int Trainer::end_without_data(std::int64_t step) {
  if (is_terminal_) print_to_stdout("\n");
  const std::string place = fmt::format("after step {}", step);
  return agreed(world_, [&] {
    if (!missing_data_) return;
    const std::string todo = has_results() ? fmt::format("correct the data, and add --resume latest to go on {}", place)
                                           : missing_data_->what_to_do();
    throw Error(missing_data_->code(), missing_data_->what_happened(),
                fmt::format("{}, {}", missing_data_->where(), place), todo);
  });
}

}  // namespace zs
